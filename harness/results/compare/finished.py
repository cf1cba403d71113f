"""A finished run as its folder holds it, and the numbers that it gave."""

import glob
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from harness.errors import ConfigError
from harness.loadgen.scenario import scenario_named
from harness.results import run_folder
from harness.results.compare.run_files import RunFiles, fitting, read_files
from harness.results.evidence import bootstrap
from harness.results.evidence.stages import (
    PERCENTILES,
    STAGE_EDGES,
    STAGES,
    Completions,
    query_completed_ns,
    query_latency_ns,
)
from harness.types import Array

_TAIL = frozenset(("p95", "p97", "p99", "p99.9"))


class Number(NamedTuple):
    """One number of a run.

    kind: what noise is to be expected: `rate`, `body`, `tail` or `exact`. draws: (DRAWS,) of
    spread.py, None where only the number itself is known.
    """

    value: float
    unit: str
    kind: str
    draws: Array | None = None
    higher_is_better: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedRun:
    """result, environment, config: the content of these files. name: the folder's, with as much of
    its path as tells it from the other runs of a comparison.
    """

    name: str
    folder: Path
    result: Mapping[str, Any]
    environment: Mapping[str, Any]
    config: Mapping[str, Any]
    numbers: Mapping[str, Number]


def side(text: str, price_per_h: float | None = None) -> list[FinishedRun]:
    """The runs that `text` names: a folder, several with commas between, patterns (`a-*`). The folder
    that --repeats made stands for its runs.

    price_per_h: what an hour of their machine costs.
    """
    return [read(folder, price_per_h) for folder in _folders(text)]


def named_apart(sides: Sequence[Sequence[FinishedRun]]) -> list[list[FinishedRun]]:
    """The same runs, each with as much of its path as tells it from all others: ga/run-1, gb/run-1."""
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
    """With its numbers. A ConfigError names the file that is missing, or is not what a run writes."""
    files = read_files(folder)
    run = files.performance
    done = run.done if run else None
    with fitting(folder):
        numbers = dict(_numbers(files.result, done, run.plan.samples_per_query if run else 1))
        if "throughput" in numbers:
            numbers |= dict(_efficiency(numbers["throughput"], files, price_per_h))
        return FinishedRun(
            name=files.name,
            folder=folder,
            result=files.result,
            environment=files.environment,
            config=files.config,
            numbers=numbers,
        )


def _folders(text: str) -> Iterator[Path]:
    """Each once, however often and by whatever link it is named."""
    seen = set()
    for part in [text] if Path(text).is_dir() else text.split(","):
        literal = Path(part).is_dir() or glob.escape(part) == part
        found = [Path(part)] if literal else sorted(map(Path, glob.glob(part)))  # noqa: PTH207 - absolute patterns
        wanted = [p for p in found if literal or _is_finished(p)]
        made = [run for path in wanted for run in _repeats(path) or [path]]
        if not made:
            raise ConfigError(f"{part!r} matches no finished run: see `runs`")
        for folder in made:
            if folder.resolve() not in seen:
                seen.add(folder.resolve())
                yield folder


def _repeats(folder: Path) -> list[Path]:
    """The finished runs that --repeats made in this folder, in their order; [] in any other folder."""
    if not (folder / run_folder.REPEATS).is_file():
        return []
    return sorted(
        filter(_is_run, folder.glob("run-*")), key=lambda path: (len(path.name), path.name)
    )


def _is_finished(folder: Path) -> bool:
    """A link is another name of one of them: `latest`."""
    named = folder.is_symlink() or folder.name.endswith(".partial")
    return not named and (_is_run(folder) or bool(_repeats(folder)))


def _is_run(folder: Path) -> bool:
    return (folder / run_folder.RESULT).is_file() and not folder.name.endswith(".partial")


def _numbers(
    result: Mapping[str, Any], done: Completions | None, samples_per_query: int
) -> Iterator[tuple[str, Number]]:
    """Of Offline no latencies and no queueing: they only say how much was asked for at once."""
    offline = scenario_named(result["scenario"]).all_at_once
    if done is not None and len(done):
        rate = (result["throughput_per_s"] or {}).get("completed")
        if rate:
            draws = bootstrap.drawn_rate(
                done.columns["completed_ns"], int(done.columns["scheduled_ns"].min())
            )
            yield "throughput", Number(rate, "samples/s", "rate", draws, higher_is_better=True)
        if not offline and result["latency_ns"]:
            yield from _latencies(result["latency_ns"], done, samples_per_query)
        yield from _stages(result["stages_ns"], done, STAGES[2:] if offline else STAGES)
    yield from _plain(result)


def _latencies(
    said: Mapping[str, Any], done: Completions, samples_per_query: int
) -> Iterator[tuple[str, Number]]:
    """said: LoadGen's, of queries; how far they spread is told by the journal."""
    latency_ns = query_latency_ns(done, samples_per_query)
    if not len(latency_ns):
        return
    block = bootstrap.blocks(query_completed_ns(done, samples_per_query))
    drawn = bootstrap.drawn_percentiles(latency_ns, block, PERCENTILES)
    for name, draws in drawn.items():
        if said.get(name) is not None:
            kind = "tail" if name in _TAIL else "body"
            yield name, Number(float(said[name]), "ns", kind, draws)


def _stages(
    said: Mapping[str, Any], done: Completions, stages: Sequence[str]
) -> Iterator[tuple[str, Number]]:
    block = bootstrap.blocks(done.columns["completed_ns"])
    wanted = {name: PERCENTILES[name] for name in ("p50", "p99")}
    for stage in stages:
        begin, end = STAGE_EDGES[stage]
        spent_ns = done.columns[end] - done.columns[begin]
        drawn = bootstrap.drawn_percentiles(spent_ns, block, wanted)
        for name in wanted:
            kind = "tail" if name in _TAIL else "body"
            yield f"{stage}.{name}", Number(float(said[stage][name]), "ns", kind, drawn[name])


def _plain(result: Mapping[str, Any]) -> Iterator[tuple[str, Number]]:
    """Numbers without an interval of their own."""
    process = result.get("measured_process")
    if process:
        yield "cpu", Number(process["cpu_s_per_query"] * 1e9, "ns", "body")
    headline = result.get("headline")
    if headline and headline["unit"] == "ns":  # early stopping's estimate; others stand above
        yield "headline", Number(float(headline["value"]), "ns", "tail")
    accuracy = result.get("accuracy")
    if accuracy and accuracy["value"] is not None:
        higher = not accuracy.get("lower_is_better", False)
        value, unit = float(accuracy["value"]), str(accuracy["unit"])
        yield "accuracy", Number(value, unit, "exact", higher_is_better=higher)
    for reading in _readings(result):
        for name in ("joules_per_query", "joules_per_sample"):
            # Sources cover different things: of each the name says which, so none meets another.
            yield f"{name}.{reading['source']}", Number(float(reading[name]), "J", "body")


def _readings(result: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    readings: Sequence[Mapping[str, Any]] = (result.get("power") or {}).get("readings", ())
    return readings


def _efficiency(
    throughput: Number, files: RunFiles, price_per_h: float | None
) -> Iterator[tuple[str, Number]]:
    """What the throughput is of each thing that it costs. Of a GPU's answers no core is the measure."""
    cores = (files.environment.get("machine") or {}).get("cores_usable")
    if isinstance(cores, int) and cores > 0 and files.config.get("device") != "cuda":
        yield "throughput_per_core", _times(throughput, 1 / cores, "samples/s/core")
    for reading in _readings(files.result):
        per_watt = _times(throughput, 1 / float(reading["mean_watts"]), "samples/s/W")
        # How far the power itself may be off is not known, so neither is the interval.
        yield f"throughput_per_watt.{reading['source']}", per_watt._replace(draws=None, kind="body")
    if price_per_h is not None:
        yield "samples_per_price", _times(throughput, 3600 / price_per_h, "samples")


def _times(number: Number, factor: float, unit: str) -> Number:
    draws = None if number.draws is None else number.draws * factor
    return number._replace(value=number.value * factor, draws=draws, unit=unit)
