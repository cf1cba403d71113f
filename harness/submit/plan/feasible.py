"""Lists the benchmarks of a category that this machine can run within a day, for `submit plan --benchmark all`.

The times are lower bounds. They assume that a sample takes only as long as its multiplications, at the speed of this
machine's fastest matrix product. A benchmark is omitted only if it cannot be fast enough, so a listed benchmark may
still take too long.
"""

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.core.stats import queries_needed
from harness.core.units import counted, show_ns
from harness.errors import ConfigError
from harness.machine.host import cpu_flags, memory_bytes
from harness.results.pages.tables import Column, aligned
from harness.submit.plan.matrix import OFFLINE_FACTOR, START_S, show_s
from harness.submit.plan.request import AT_A_RATE, OURS
from harness.submit.rules.tree.rounds import Benchmark, Round

DAY_S = 24 * 3600.0
FASTER: Mapping[str, float] = {"amx_int8": 16.0, "avx512_vnni": 4.0, "avx_vnni": 4.0}
"""Maps a processor flag to the speed of 8-bit products, as a multiple of the speed of float32 products in the same
registers.
"""

_SIDE, _TRIES = 1024, 5


class Machine(NamedTuple):
    flops: float
    """Speed of the fastest matrix product measured on this machine, in operations per second."""
    memory_bytes: int
    disk_bytes: int
    """Free disk space."""

    def __str__(self) -> str:
        return (
            f"at most {self.flops / 1e12:.3g} TFLOP/s in matrix products, {self.memory_bytes / 1e9:.0f} GB of memory, "
            f"{self.disk_bytes / 1e9:.0f} GB of free disk"
        )


class Feasibility(NamedTuple):
    benchmark: str
    scenarios: tuple[str, ...]
    runs: int
    least_s: float | None
    """Lower bound for the duration in s; None if the benchmark cannot run at all."""
    why: str
    """Reason why the benchmark does not fit into a day; '' if it may fit."""


def this_machine(folder: Path) -> Machine:
    """Measures this machine. folder: any folder on the disk that will store the data."""
    flags = cpu_flags()
    factor = max((f for flag, f in FASTER.items() if flag in flags), default=1.0)
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return Machine(_float32_flops() * factor, memory_bytes(), shutil.disk_usage(there).free)


def _float32_flops() -> float:
    square = np.ones((_SIDE, _SIDE), np.float32)
    square @ square
    times_s = []
    for _ in range(_TRIES):
        begun_s = time.perf_counter()
        square @ square
        times_s.append(time.perf_counter() - begun_s)
    return float(2 * _SIDE**3 / min(times_s))


def feasible(rules: Round, division: str, category: str, machine: Machine) -> list[Feasibility]:
    """Returns the category's benchmarks. Raises a ConfigError if the round does not contain the category or the
    division.
    """
    for flag, value, known in (
        ("--division", division, rules.divisions),
        ("--category", category, rules.categories),
    ):
        if value not in known:
            raise ConfigError(f"{flag} {value or 'is missing'}: choose from {'; '.join(known)}")
    found = []
    for name, benchmark in rules.benchmarks.items():
        scenarios = _scenarios(benchmark, category)
        if scenarios:
            is_open = division == "open"
            audits = () if is_open else benchmark.audits
            row = _feasible(rules, name, scenarios, audits, machine)
            if benchmark.client and not is_open:
                why = f"its speed is measured with {benchmark.client}"
                row = row._replace(least_s=None, why=why)
            found.append(row)
    return found


def _scenarios(benchmark: Benchmark, category: str) -> tuple[str, ...]:
    """Returns the scenarios that the rules require. If the rules require any one of several scenarios, uses Server."""
    required = {*benchmark.scenarios(category)}
    if required and "Server" in benchmark.optional_in(category):
        required.add("Server")
    return tuple(scenario for scenario in OURS if scenario in required)


def _feasible(
    rules: Round, name: str, scenarios: tuple[str, ...], audits: tuple[str, ...], machine: Machine
) -> Feasibility:
    benchmark = rules.benchmarks[name]
    runs = len(scenarios) * (2 + len(audits))
    if why := next(_missing(rules, benchmark, scenarios, audits, machine), ""):
        return Feasibility(name, scenarios, runs, None, why)
    each_s = benchmark.work.gflop * 1e9 / machine.flops
    least_s = sum(
        seconds
        for scenario in scenarios
        for seconds in _lengths_s(rules, name, scenario, audits, each_s)
    )
    why = ""
    if least_s > DAY_S:
        samples = counted(benchmark.samples, "sample")
        why = f"{samples} of {_show_flop(benchmark.work.gflop)} take longer than a day"
    return Feasibility(name, scenarios, runs, least_s, why)


def _missing(
    rules: Round,
    benchmark: Benchmark,
    scenarios: tuple[str, ...],
    audits: tuple[str, ...],
    machine: Machine,
) -> Iterator[str]:
    """Yields the reasons why this machine cannot run the benchmark at all."""
    work = benchmark.work
    for audit in audits:
        if rules.audits[audit].needs:
            yield f"{audit} needs {rules.audits[audit].needs}"
    for what, needed_gb, there in (
        ("memory", work.memory_gb, machine.memory_bytes),
        ("disk", work.disk_gb, machine.disk_bytes),
    ):
        if needed_gb * 1e9 > there:
            yield f"it needs {needed_gb:,.0f} GB of {what}, but this machine has {there / 1e9:,.0f} GB"
    each_ns = work.gflop * 1e18 / machine.flops
    for scenario in scenarios:
        limit_ns = benchmark.latency_limit_ns.get(scenario)
        if scenario in (benchmark.token_limits_ns or {}):
            continue  # this scenario has no latency bound, because LoadGen judges the token times
        if limit_ns is not None and each_ns > limit_ns:
            yield f"a sample takes at least {show_ns(each_ns)}, but {scenario} allows {show_ns(limit_ns)}"


def _lengths_s(
    rules: Round, name: str, scenario: str, audits: tuple[str, ...], each_s: float
) -> Iterator[float]:
    """Yields the minimum duration for each run. each_s: minimum time per sample."""
    benchmark = rules.benchmarks[name]
    performance_s = START_S + _performance_s(rules, benchmark, scenario, each_s)
    yield performance_s
    yield START_S + benchmark.samples_in(scenario) * each_s
    for audit in audits:
        settings = rules.audit_settings(audit, name)
        is_short = settings.get("min_duration") == 0
        yield START_S + settings["min_query_count"] * each_s if is_short else performance_s


def _performance_s(rules: Round, benchmark: Benchmark, scenario: str, each_s: float) -> float:
    least_s = rules.min_duration_ms / 1e3 if benchmark.timed else 0.0
    if scenario == "Offline":
        return max(least_s * OFFLINE_FACTOR, benchmark.offline_samples * each_s)
    each_once = benchmark.loadgen in rules.equal_issue
    set_s = benchmark.performance_samples * each_s if each_once else 0.0
    if scenario in AT_A_RATE:
        return max(least_s, set_s)
    samples = rules.multi_stream_samples if scenario == "MultiStream" else 1
    queries_s = queries_needed(1, rules.percentiles[scenario]) * samples * each_s
    return max(least_s, queries_s, set_s)


def _show_flop(gflop: float) -> str:
    units = ((1e6, "PFLOP"), (1e3, "TFLOP"), (1, "GFLOP"))
    size, unit = next((size, unit) for size, unit in units if gflop >= size or unit == "GFLOP")
    return f"{gflop / size:.3g} {unit}"


def lines(rows: list[Feasibility], machine: Machine) -> Iterator[str]:
    """Yields one line per benchmark, and then the facts about the machine."""
    columns = [Column("benchmark"), Column("scenarios"), Column("runs", "count")]
    columns += [Column("at least", "s"), Column("within 24 h"), Column("why not")]
    cells = [
        (
            row.benchmark,
            ", ".join(row.scenarios),
            row.runs,
            show_s(row.least_s) if row.least_s is not None else "-",
            "no" if row.why else "possible",
            row.why,
        )
        for row in rows
    ]
    yield from aligned(columns, cells)
    possible = sum(not row.why for row in rows)
    yield f"{possible} of {len(rows)} benchmarks may fit into 24 h on this machine: {machine}"
