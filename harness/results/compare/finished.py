"""Reads finished runs and the numbers that `compare` judges."""

import glob
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from harness.core.codes import MACHINE_DOUBTS
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
from harness.results.numbers import OPEN, SPEEDS, Number, kind_of, numbers
from harness.results.run_files import RunFiles, read_files, reading_run
from harness.results.seal.digests import SEAL, differences
from harness.types import Array


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """A run's files and numbers. `result`, `environment` and `config` hold the content of the files."""

    name: str
    """The folder's name, preceded by as much of the path as a comparison needs to distinguish the runs."""
    folder: Path
    measured: str
    """Digest that only copies of the run share (harness.results.records.measured)."""
    result: Mapping[str, Any]
    environment: Mapping[str, Any]
    config: Mapping[str, Any]
    numbers: Mapping[str, Number]
    peaks: Mapping[str, float] = field(default_factory=dict)
    """Rates that `machine` measured on the run's machine. The keys are fields of
    harness.machine.characterise.here.Rates.
    """

    @property
    def disturbances(self) -> frozenset[str]:
        """Codes of the run's doubts about the machine."""
        return MACHINE_DOUBTS & {doubt["code"] for doubt in self.result["doubts"]}


def side(text: str, price_per_h: float | None = None) -> list[FinishedRun]:
    """Reads the runs of one side. text: folders or patterns (`a-*`), separated by commas. A folder of --repeats stands
    for all its runs. Copies of one run count once.

    price_per_h: hourly price of the machine.
    """
    return _once(_all(text, price_per_h))


def _all(text: str, price_per_h: float | None) -> list[FinishedRun]:
    return [read(folder, price_per_h) for folder in _folders(text)]


def sides_of(
    texts: Sequence[str], prices_per_h: Sequence[float | None] = ()
) -> list[list[FinishedRun]]:
    """Reads the runs of each side, and gives the runs distinct names. Warns on stderr about runs that appear more than
    once, and about files that differ from the run's SHA256SUMS.

    prices_per_h: hourly price of each side's machine; empty without prices.
    """
    prices = prices_per_h or [None] * len(texts)
    sides = [_all(text, price) for text, price in zip(texts, prices, strict=True)]
    _tell_same_runs([run for one in sides for run in one])
    counted_once = [_once(runs) for runs in sides]
    for run in {run.folder: run for one in counted_once for run in one}.values():
        _tell_changes(run.folder)
    return named_apart(counted_once)


def _once(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Returns the runs, with only the first of several copies of a run."""
    first: dict[str, FinishedRun] = {}
    for run in runs:
        first.setdefault(run.measured, run)
    return list(first.values())


def _tell_same_runs(runs: Sequence[FinishedRun]) -> None:
    """Prints a line for each set of copies, because copies of a run do not show noise."""
    by_content: dict[str, list[Path]] = {}
    for run in runs:
        by_content.setdefault(run.measured, []).append(run.folder.resolve())
    for folders in by_content.values():
        first, *others = dict.fromkeys(folders)
        if others:
            copies = ", ".join(map(str, others))
            say(
                f"{first} was also given as {copies}, but a copy shows no noise: name each run once"
            )
        elif len(folders) > 1:
            say(f"{first} is compared with itself: it appears more than once")


def _tell_changes(folder: Path) -> None:
    if not (folder / SEAL).is_file():  # runs of earlier versions have no seal
        return
    changes = list(differences(folder))
    if changes:
        more = f", and {counted(len(changes) - 1, 'further change')}" if len(changes) > 1 else ""
        say(f"{changes[0]}{more}: do not trust its numbers; `check {folder}` shows all")


def named_apart(sides: Sequence[Sequence[FinishedRun]]) -> list[list[FinishedRun]]:
    """Names each run by the shortest end of its path that distinguishes it: ga/run-1, gb/run-1."""
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
    """Reads a run. Raises a ConfigError that names the file if a file is missing or contains something that no run
    writes.
    """
    files = read_files(folder)
    with reading_run(folder):
        found = _numbers(files)
        if "throughput" in found:
            found |= dict(_efficiency(found["throughput"], files, price_per_h))
        return FinishedRun(
            name=files.name,
            folder=folder,
            measured=records.measured(folder, files.result),
            result=files.result,
            environment=files.environment,
            config=files.config,
            numbers=found,
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
    """Returns the finished runs of --repeats in this folder, in order; [] for any other folder."""
    if not (folder / run_folder.REPEATS).is_file():
        return []
    return sorted(filter(_is_run, folder.glob("run-*")), key=lambda run: (len(run.name), run.name))


def _is_finished(folder: Path) -> bool:
    """Returns whether the folder is a finished run that a pattern may match. Links such as `latest` are left out,
    because they would repeat a run.
    """
    named = folder.is_symlink() or folder.name.endswith(".partial")
    return not named and (_is_run(folder) or bool(_repeats(folder)))


def _is_run(folder: Path) -> bool:
    return (folder / run_folder.RESULT).is_file() and not folder.name.endswith(".partial")


def _numbers(files: RunFiles) -> dict[str, Number]:
    """Returns the numbers of result.json and the numbers of the run's stages. Percentiles of the whole run use the
    intervals of result.json, as the report does; all other intervals come from the journal. Without a journal, a run
    gets no rate and no latencies.
    """
    stored = {n: one._replace(value=float(one.value)) for n, one in numbers(files.result).items()}
    speeds = {name: stored.pop(name) for name in SPEEDS if name in stored}
    run = files.performance
    if run is None or not run.done:
        return stored
    if "throughput" in speeds:
        speeds["throughput"] = _throughput(speeds["throughput"], run.done)
    latency_ns = query_latency_ns(run.done, run.plan.samples_per_query)
    if "mean" in speeds and len(latency_ns):
        ends = mean_interval(
            latency_ns, blocks(query_completed_ns(run.done, run.plan.samples_per_query))
        )
        speeds["mean"] = _with_interval(speeds["mean"], float(latency_ns.mean()), ends)
    return {**speeds, **dict(_stages(files.result, run.done)), **stored}


def _throughput(rate: Number, done: Completions) -> Number:
    completed_ns = done.columns["completed_ns"]
    begun_ns = int(done.columns["scheduled_ns"].min())
    estimate = len(completed_ns) * 1e9 / max(int(completed_ns.max()) - begun_ns, 1)
    return _with_interval(rate, estimate, rate_interval(completed_ns, begun_ns))


def _stages(result: Mapping[str, Any], done: Completions) -> Iterator[tuple[str, Number]]:
    """Yields the numbers of stages. In Offline, skips the first two stages, which only show that all samples start at
    once.
    """
    block = blocks(done.columns["completed_ns"])
    waits = 2 if scenario_named(result["scenario"]).all_at_once else 0
    for stage in [*done.edges][waits:]:
        stored = result["stages_ns"][stage]
        found = {n: Number(float(stored[n]), "ns", kind_of(n)) for n in ("p50", "p99")}
        for name, number in _percentiles(found, done.spent_ns(stage), block):
            yield f"{stage}.{name}", number


def _percentiles(
    found: Mapping[str, Number], values_ns: Array, block: Array
) -> Iterator[tuple[str, Number]]:
    """Yields each percentile in `found`, with its interval."""
    fractions = {name: share for name, share in PERCENTILES.items() if name in found}
    ordered_ns = np.sort(values_ns)
    for name, (low, high, *_) in percentile_intervals(values_ns, block, fractions).items():
        ends = None if low is None or high is None else (low, high)
        yield name, _with_interval(found[name], percentile_ns(ordered_ns, fractions[name]), ends)


def _with_interval(number: Number, estimate: float, ends: tuple[float, float] | None) -> Number:
    """Scales the journal's interval to LoadGen's number, which differs by a few us."""
    scale = number.value / estimate if estimate else 1.0
    low, high = ends or OPEN
    return number._replace(low=low * scale, high=high * scale)


def _efficiency(
    throughput: Number, files: RunFiles, price_per_h: float | None
) -> Iterator[tuple[str, Number]]:
    """Yields the throughput per core, per watt and per unit of the machine's price. A run on a GPU gets no throughput
    per core.
    """
    cores = (files.environment.get("machine") or {}).get("cores_usable")
    if isinstance(cores, int) and cores > 0 and files.config.get("device", "cpu") == "cpu":
        yield "throughput_per_core", _times(throughput, 1 / cores, "samples/s/core")
    for reading in (files.result.get("power") or {}).get("readings", ()):
        per_watt = _times(throughput, 1 / float(reading["mean_watts"]), "samples/s/W")
        # The numbers per watt have no interval, because the error of the power is unknown.
        yield (
            f"throughput_per_watt.{reading['source']}",
            per_watt._replace(low=None, high=None, kind="body"),
        )
    if price_per_h is not None:
        yield "samples_per_price", _times(throughput, 3600 / price_per_h, "samples")


def _times(number: Number, factor: float, unit: str) -> Number:
    low, high = (None if end is None else end * factor for end in (number.low, number.high))
    return number._replace(value=number.value * factor, low=low, high=high, unit=unit)
