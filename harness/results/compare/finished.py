"""Reads finished runs and the numbers that `compare` judges."""

import glob
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.codes import MACHINE_DOUBTS
from harness.core.config.parse import leading, parse_slos
from harness.core.console import say
from harness.core.stats import percentile_ns
from harness.core.units import counted
from harness.errors import ConfigError
from harness.loadgen.scenario import scenario_named
from harness.machine.characterise.here import stored_of
from harness.results import records, run_folder
from harness.results.evidence.block_intervals import (
    blocks,
    mean_interval,
    percentile_intervals,
    rate_interval,
)
from harness.results.evidence.stages import (
    PERCENTILES,
    Completions,
    query_completed_ns,
    query_latency_ns,
)
from harness.results.run_files import RunFiles, read_files, reading_run
from harness.results.seal.digests import SEAL, differences
from harness.types import Array

_OPEN = (0.0, math.inf)
"""The ends of a number whose run has too few independent parts for an interval."""


class Number(NamedTuple):
    value: float
    unit: str
    kind: str
    """Kind of noise: `rate`, `body`, `tail` or `exact`."""
    low: float | None = None
    """Lower end of the interval within the run; None where only the number itself is known."""
    high: float | None = None
    """Upper end, as `low`."""
    higher_is_better: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run's files and numbers; `result`, `environment` and `config` are the content of the files."""

    name: str
    """The folder's name, with as much of its path as distinguishes it in a comparison."""
    folder: Path
    measured: str
    """Equal for copies of one run alone, as harness.results.records.measured has it."""
    result: Mapping[str, Any]
    environment: Mapping[str, Any]
    config: Mapping[str, Any]
    numbers: Mapping[str, Number]
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Rates that `machine` has stored for the run's machine: fields of harness.machine.characterise.here.Rates."""

    @property
    def disturbances(self) -> frozenset[str]:
        """Codes of its doubts about the machine."""
        return MACHINE_DOUBTS & {doubt["code"] for doubt in self.result["doubts"]}


def side(text: str, price_per_h: float | None = None) -> list[FinishedRun]:
    """The runs that `text` names: folders or patterns (`a-*`), separated by commas. A folder of --repeats
    stands for its runs. Copies of one run count once.

    price_per_h: price of one hour of the machine.
    """
    return _once(_all(text, price_per_h))


def _all(text: str, price_per_h: float | None) -> list[FinishedRun]:
    return [read(folder, price_per_h) for folder in _folders(text)]


def sides_of(
    texts: Sequence[str], prices_per_h: Sequence[float | None] = ()
) -> list[list[FinishedRun]]:
    """The runs of each side, named apart. A line on stderr names runs that appear more than once, and each run
    whose files differ from its SHA256SUMS.

    prices_per_h: of one hour of each side's machine; none where it is empty.
    """
    prices = prices_per_h or [None] * len(texts)
    sides = [_all(text, price) for text, price in zip(texts, prices, strict=True)]
    _tell_same_runs([run for one in sides for run in one])
    counted_once = [_once(runs) for runs in sides]
    for run in {run.folder: run for one in counted_once for run in one}.values():
        _tell_changes(run.folder)
    return named_apart(counted_once)


def _once(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """The runs without further copies of one."""
    first: dict[str, FinishedRun] = {}
    for run in runs:
        first.setdefault(run.measured, run)
    return list(first.values())


def _tell_same_runs(runs: Sequence[FinishedRun]) -> None:
    """Copies of one run differ by nothing, and so show no noise."""
    by_content: dict[str, list[Path]] = {}
    for run in runs:
        by_content.setdefault(run.measured, []).append(run.folder.resolve())
    for folders in by_content.values():
        first, *others = dict.fromkeys(folders)
        if others:
            copies = ", ".join(map(str, others))
            say(f"{copies}: a copy of {first}: one run, which shows no noise; name each run once")
        elif len(folders) > 1:
            say(f"{first} is compared with itself: it appears more than once")


def _tell_changes(folder: Path) -> None:
    if not (folder / SEAL).is_file():  # of an earlier version
        return
    changes = list(differences(folder))
    if changes:
        more = f", and {counted(len(changes) - 1, 'further change')}" if len(changes) > 1 else ""
        say(f"{changes[0]}{more}: do not trust its numbers; `check {folder}` shows all")


def named_apart(sides: Sequence[Sequence[FinishedRun]]) -> list[list[FinishedRun]]:
    """Names each run by the shortest unique end of its path: ga/run-1, gb/run-1."""
    paths = {run.folder.resolve() for one in sides for run in one}
    return [
        [replace(run, name=_short(run.folder.resolve(), paths)) for run in one] for one in sides
    ]


def _short(path: Path, paths: Collection[Path]) -> str:
    for parts in range(1, len(path.parts) + 1):
        tail = path.parts[-parts:]
        if sum(other.parts[-parts:] == tail for other in paths) == 1:
            return str(Path(*tail))
    return str(path)


def read(folder: Path, price_per_h: float | None = None) -> FinishedRun:
    """Read a run. A ConfigError names a file that is missing, or that no run wrote."""
    files = read_files(folder)
    run = files.performance
    done = run.done if run else None
    with reading_run(folder):
        numbers = dict(_numbers(files.result, done, run.plan.samples_per_query if run else 1))
        if "throughput" in numbers:
            numbers |= dict(_efficiency(numbers["throughput"], files, price_per_h))
        return FinishedRun(
            name=files.name,
            folder=folder,
            measured=records.measured(folder, files.result),
            result=files.result,
            environment=files.environment,
            config=files.config,
            numbers=numbers,
            peaks=stored_of(files.environment.get("machine") or {}),
        )


def _folders(text: str) -> Iterator[Path]:
    seen = set()
    for part in [text] if Path(text).is_dir() else text.split(","):
        literal = Path(part).is_dir() or glob.escape(part) == part
        matches = [Path(part)] if literal else sorted(map(Path, glob.glob(part)))  # noqa: PTH207 - absolute patterns
        finished = [p for p in matches if literal or _is_finished(p)]
        runs = [run for path in finished for run in _repeats(path) or [path]]
        if not runs:
            raise ConfigError(f"{part!r} matches no finished run: see `runs`")
        for folder in runs:
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                yield folder


def _repeats(folder: Path) -> list[Path]:
    """The finished runs of --repeats in this folder, in their order; [] in any other folder."""
    if not (folder / run_folder.REPEATS).is_file():
        return []
    return sorted(filter(_is_run, folder.glob("run-*")), key=lambda run: (len(run.name), run.name))


def _is_finished(folder: Path) -> bool:
    """Whether a pattern may match the folder: links such as `latest` repeat a run."""
    named = folder.is_symlink() or folder.name.endswith(".partial")
    return not named and (_is_run(folder) or bool(_repeats(folder)))


def _is_run(folder: Path) -> bool:
    return (folder / run_folder.RESULT).is_file() and not folder.name.endswith(".partial")


def _numbers(
    result: Mapping[str, Any], done: Completions | None, samples_per_query: int
) -> Iterator[tuple[str, Number]]:
    """Offline has no latencies and no queueing: they only reflect the samples issued at once."""
    offline = scenario_named(result["scenario"]).all_at_once
    if done is not None and len(done):
        rate = (result["throughput_per_s"] or {}).get("completed")
        if rate:
            yield "throughput", _throughput(rate, done)
        if not offline and result["latency_ns"]:
            yield from _latencies(result["latency_ns"], done, samples_per_query)
        names = [*done.edges][2:] if offline else [*done.edges]
        yield from _stages(result["stages_ns"], done, names)
    yield from _plain(result)


def _throughput(rate: float, done: Completions) -> Number:
    """rate: LoadGen's, in samples/s; its interval comes from the journal."""
    completed_ns = done.columns["completed_ns"]
    begun_ns = int(done.columns["scheduled_ns"].min())
    low, high = rate_interval(completed_ns, begun_ns) or _OPEN
    estimate = len(completed_ns) * 1e9 / max(int(completed_ns.max()) - begun_ns, 1)
    number = Number(rate, "samples/s", "rate", higher_is_better=True)
    return _with_interval(number, estimate, low, high)


def _latencies(
    stored: Mapping[str, Any], done: Completions, samples_per_query: int
) -> Iterator[tuple[str, Number]]:
    """stored: LoadGen's latencies of queries; their intervals come from the journal."""
    latency_ns = query_latency_ns(done, samples_per_query)
    if not len(latency_ns):
        return
    block = blocks(query_completed_ns(done, samples_per_query))
    names = [name for name in PERCENTILES if stored.get(name) is not None]
    yield from _percentiles(latency_ns, block, {name: stored[name] for name in names})
    mean = stored.get("mean")
    if mean is not None:
        number = Number(float(mean), "ns", "body")
        low, high = mean_interval(latency_ns, block) or _OPEN
        yield "mean", _with_interval(number, float(latency_ns.mean()), low, high)


def _kind(percentile: str) -> str:
    return "tail" if percentile in ("p95", "p97", "p99", "p99.9") else "body"


def _stages(
    stored: Mapping[str, Any], done: Completions, names: Sequence[str]
) -> Iterator[tuple[str, Number]]:
    block = blocks(done.columns["completed_ns"])
    for stage in names:
        begin, end = done.edges[stage]
        spent_ns = done.columns[end] - done.columns[begin]
        values = {name: stored[stage][name] for name in ("p50", "p99")}
        for name, number in _percentiles(spent_ns, block, values):
            yield f"{stage}.{name}", number


def _percentiles(
    values_ns: Array, block: Array, stored: Mapping[str, float]
) -> Iterator[tuple[str, Number]]:
    """stored: name -> percentile. Without an interval both ends are open."""
    fractions = {name: PERCENTILES[name] for name in stored}
    ordered_ns = np.sort(values_ns)
    for name, interval in percentile_intervals(values_ns, block, fractions).items():
        number = Number(float(stored[name]), "ns", _kind(name))
        yield (
            name,
            _with_interval(
                number,
                percentile_ns(ordered_ns, fractions[name]),
                _OPEN[0] if interval.low is None else interval.low,
                _OPEN[1] if interval.high is None else interval.high,
            ),
        )


def _with_interval(number: Number, estimate: float, low: float, high: float) -> Number:
    """The interval of the journal's estimate, moved to LoadGen's number, which lies some us beside it."""
    scale = number.value / estimate if estimate else 1.0
    return number._replace(low=low * scale, high=high * scale)


def _plain(result: Mapping[str, Any]) -> Iterator[tuple[str, Number]]:
    """Numbers without an interval."""
    process = result.get("measured_process")
    if process:
        yield "cpu", Number(process["cpu_s_per_query"] * 1e9, "ns", "body")
    headline = result.get("headline")
    if headline and headline["unit"] == "ns":  # the early-stopping estimate; others are above
        yield "headline", Number(float(headline["value"]), "ns", "tail")
    yield from _of_tokens(result)
    accuracy = result.get("accuracy")
    if accuracy and accuracy["value"] is not None:
        higher = not accuracy.get("lower_is_better", False)
        value, unit = float(accuracy["value"]), str(accuracy["unit"])
        yield "accuracy", Number(value, unit, "exact", higher_is_better=higher)
    for reading in (result.get("power") or {}).get("readings", ()):
        for name in ("joules_per_query", "joules_per_sample"):
            # Sources cover different parts of the machine; the name keeps them apart.
            yield f"{name}.{reading['source']}", Number(float(reading[name]), "J", "body")


def _of_tokens(result: Mapping[str, Any]) -> Iterator[tuple[str, Number]]:
    """Goodput under the same SLOs, and the times of tokens."""
    goodput, slos = result.get("goodput") or {}, parse_slos(result.get("slo") or "")
    if list(slos) != [leading(slos)] and goodput.get("per_s"):
        name = f"goodput.{','.join(map(str, slos))}"
        yield name, Number(goodput["per_s"], "queries/s", "body", higher_is_better=True)
    tokens = result.get("tokens") or {}
    if tokens.get("output_per_s"):
        yield "tokens", Number(tokens["output_per_s"], "tokens/s", "body", higher_is_better=True)
    for time in ("ttft", "tpot", "itl"):
        for name, value_ns in (tokens.get(f"{time}_ns") or {}).items():
            yield f"{time}_{name}", Number(float(value_ns), "ns", _kind(name))


def _efficiency(
    throughput: Number, files: RunFiles, price_per_h: float | None
) -> Iterator[tuple[str, Number]]:
    """Throughput per core, watt and price. A run on a GPU has no throughput per core."""
    cores = (files.environment.get("machine") or {}).get("cores_usable")
    if isinstance(cores, int) and cores > 0 and files.config.get("device", "cpu") == "cpu":
        yield "throughput_per_core", _times(throughput, 1 / cores, "samples/s/core")
    for reading in (files.result.get("power") or {}).get("readings", ()):
        per_watt = _times(throughput, 1 / float(reading["mean_watts"]), "samples/s/W")
        # The error of the power is unknown, so no interval is.
        yield (
            f"throughput_per_watt.{reading['source']}",
            per_watt._replace(low=None, high=None, kind="body"),
        )
    if price_per_h is not None:
        yield "samples_per_price", _times(throughput, 3600 / price_per_h, "samples")


def _times(number: Number, factor: float, unit: str) -> Number:
    low, high = (None if end is None else end * factor for end in (number.low, number.high))
    return number._replace(value=number.value * factor, low=low, high=high, unit=unit)
