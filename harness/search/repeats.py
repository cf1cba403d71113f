"""Repeats a run (--repeats), each time in a new process, and reports how much the numbers vary.

Run i uses the schedule seed s + i, because a result for the arrivals of a single seed is not a property of the system.
All other settings stay the same, including the order of samples. Each run gets a separate result folder. `compare`
accepts all these folders as one side, and repeats.json and the table summarise them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from harness.core.config.parse import parse_slos
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig
from harness.core.config.schema import MAX_SEED
from harness.core.stats import LEVEL
from harness.core.units import NS_PER_MS, counted, show_percent, show_rate
from harness.errors import RunInvalid
from harness.loadgen.scenario import scenario_named
from harness.loadgen.versions import seeds_of
from harness.results import run_folder
from harness.results.compare.change_text import WIDEST, is_useless
from harness.results.evidence.between_runs import LEAST_RUNS, over_runs
from harness.results.numbers import SPEEDS, deciding_number, numbers
from harness.results.outcome import Finished
from harness.results.pages.page import Figure
from harness.results.pages.plots import INVALID, VALID, bound_line, line, rounded
from harness.results.pages.runs.rows import ESTIMATE
from harness.results.pages.tables import Table, aligned, columns, show_cell
from harness.results.run_files import read_config
from harness.run.study import Study, doubt_lines, machine_text, other_reason, unfit_options

_ENDED = (0, RunInvalid.exit_status)
"""Exit statuses of completed runs."""


def problems(config: RunConfig, _repeats: int) -> Iterator[str]:
    reason = "--repeats changes the seeds: drop --mlperf, which fixes them"
    yield from unfit_options(config, "--repeats", reason)


class NumberEntry(TypedDict):
    """A number over all runs."""

    unit: str
    values: Sequence[float | None]
    """By run; None for an excluded run."""
    mean: float | None
    """Geometric mean."""
    interval: Sequence[float] | None
    """Both ends, at `level`."""


class Content(TypedDict):
    """The content of repeats.json. The sequences have one item per run."""

    schema_version: int
    scenario: str
    backend: str
    model: str
    slo: NotRequired[str | None]
    """Missing in files of earlier versions."""
    schedule_seeds: Sequence[int]
    verdicts: Sequence[str]
    reasons: Sequence[Sequence[str]]
    doubts: Sequence[Sequence[str]]
    left_out: Sequence[str | None]
    """Why a run is excluded from the numbers; None if it is included."""
    level: float
    """Level of the intervals."""
    deciding: NotRequired[str]
    """Name of the number that decides between two sides. Missing in files of earlier versions."""
    numbers: Mapping[str, NumberEntry]


class Repeats(Study[int]):
    """Several runs that differ only in the schedule seed."""

    file = run_folder.REPEATS

    def _begin(self) -> None:
        config = self._config
        self._first_seed = seeds_of(config).schedule
        self._runs: list[Finished] = []
        name = f"repeats-{config.scenario}"
        self._results = self._new_folder(name, config.backend, self._model.name)

    def run(self) -> int:
        """Performs the runs. Returns 0 if every run was VALID, and otherwise the largest exit status of a run."""
        config = self._config
        for number in range(1, self._options + 1):
            seed = (self._first_seed + number - 1) & MAX_SEED
            out = self.folder / f"run-{number}"
            text = f"run {number} of {self._options}"
            after_s = [0.0] * (self._options - number)
            seeded = replace(config, out=out, schedule_seed=seed)
            run = self.make_run(seeded, text, [0.0, *after_s], quiet=True)
            self._runs.append(run)
            self._save()
            shown = dict.fromkeys((_deciding(run.result), "throughput"))
            self._say(f"{text}: {run.in_short(*shown)}{self.time_left(after_s)}")
            if run.status not in _ENDED:
                break  # because further runs would end in the same way
            config = _like_first(config, self._runs[0])
        else:
            self.folder = self._results.finish(newest=False)
        return max(run.status for run in self._runs)

    def has_measured(self) -> bool:
        return bool(self._runs)

    def content(self) -> Content:
        results = [run.result for run in self._runs]
        return {
            "schema_version": SCHEMA_VERSION,
            "scenario": self._config.scenario,
            "backend": self._config.backend,
            "model": self._model.name,
            "slo": results[0].get("slo"),
            "schedule_seeds": [(self._first_seed + i) & MAX_SEED for i in range(len(results))],
            "verdicts": [result["verdict"] for result in results],
            "reasons": [[r["code"] for r in result["reasons"]] for result in results],
            "doubts": [[d["code"] for d in result["doubts"]] for result in results],
            "left_out": [_failure(result) for result in results],
            "level": LEVEL,
            "deciding": _deciding(results[0]),
            "numbers": dict(_numbers(results)),
        }

    def lines(self) -> Iterator[str]:
        finished = sum(run.status in _ENDED for run in self._runs)
        wanted = counted(self._options, "run")
        stopped = f"{finished} of {wanted}" if finished < self._options else ""
        return lines(self.content(), self.folder, stopped)


repeat = Repeats.execute


def _like_first(config: RunConfig, first: Finished) -> RunConfig:
    """Returns the configuration with all values that the first run's warm-up chose: rate, queries, threads and batch
    size. Runs with different choices would not be comparable.
    """
    result = first.result
    stored = read_config(first.folder) if (first.folder / run_folder.CONFIG).is_file() else {}
    chosen = {
        "queries": (result["queries"] or {}).get("planned"),
        "target_qps": (result["throughput_per_s"] or {}).get("asked"),
        **{name: stored.get(name) for name in ("instances", "threads", "max_batch")},
    }
    return replace(config, **{name: value for name, value in chosen.items() if value is not None})


def _failure(result: Mapping[str, Any]) -> str | None:
    """Returns the reason why a run is excluded from the numbers; None if the run is VALID or only missed its SLO.

    A stopped run is excluded because it measured only its beginning. A run with failed samples is excluded because it
    counts failures as answers, although failures return at once.
    """
    other = other_reason(result)
    return other.code if other is not None else None


def _deciding(result: Mapping[str, Any]) -> str:
    """Returns the name of the deciding number, even if a run ended before this number was measured."""
    return deciding_number(result, {**SPEEDS, **numbers(result)})


def _numbers(results: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, NumberEntry]]:
    """Yields each number's name with its unit, values by run (None for an excluded run), geometric mean and interval.

    Lists the rate and the latencies even if every run is excluded. Offline yields only the rate. Omits the score,
    because the arrivals do not affect it.
    """
    offline = scenario_named(results[0]["scenario"]).all_at_once
    runs = [numbers(result) if _failure(result) is None else {} for result in results]
    units = dict([*SPEEDS.items()][: 1 if offline else None])
    units |= {n: one.unit for run in runs for n, one in run.items() if one.kind != "exact"}
    for name, unit in units.items():
        values = [run[name].value if name in run else None for run in runs]
        over = over_runs([float(value) for value in values if value is not None])
        yield (
            name,
            {
                "unit": unit,
                "values": values,
                "mean": over[0] if over else None,
                "interval": list(over[1]) if over and over[1] else None,
            },
        )


_USELESS = f"> x {WIDEST}"


def headline(content: Content) -> str:
    """Returns the deciding number over all runs, with its interval. content: as in repeats.json."""
    verdicts = content["verdicts"]
    runs = f"{counted(len(verdicts), 'run')}, {verdicts.count('VALID')} VALID"
    for name, mean, interval, *_ in _rows(content):
        if name == content.get("deciding"):
            return f"{name} {mean} ({interval}) over {runs}"
    return runs


def lines(content: Content, folder: Path, stopped: str = "") -> Iterator[str]:
    """Yields the lines of the summary. stopped: for example `2 of 5 runs`; "" if all runs were made."""
    verdicts = content["verdicts"]
    valid = verdicts.count("VALID")
    yield f"{valid} of {len(verdicts)} VALID  {'  '.join(words(content))}"
    if stopped:
        yield f"  stopped after {stopped}"
    yield from facts(content)
    yield ""
    for table in tables(content):
        yield from aligned(table.columns, table.rows)
        yield ""
    yield f"{'results':<12}{folder}"


def words(content: Content) -> list[str]:
    """Returns scenario, backend, model and SLO."""
    texts = content["scenario"], content["backend"], content["model"], content.get("slo")
    return [text for text in texts if text]


def facts(content: Content) -> Iterator[str]:
    """Yields labelled lines about the runs' doubts and the excluded runs."""
    pairs = zip(content["verdicts"], content["doubts"], strict=True)
    judged = [{"verdict": verdict, "doubts": codes} for verdict, codes in pairs]
    if text := machine_text(judged):
        yield f"  machine   {text}: stop other programs and repeat"
    yield from doubt_lines(judged, "  doubt   ")
    if left_out := sorted({code for code in content["left_out"] if code is not None}):
        kept, runs = content["left_out"].count(None), len(content["verdicts"])
        yield f"  over    {kept} of {runs} runs; left out: {', '.join(left_out)}"


def tables(content: Content) -> Iterator[Table]:
    """Yields the table with the numbers over all runs; yields nothing if fewer than two runs are usable."""
    if content["left_out"].count(None) > 1:
        level = f"{show_percent(content['level'])} interval"
        heads = columns(f"number | geometric mean [ns] | {level} [ns] | least [ns] | most [ns]")
        rows = list(_rows(content))
        note = f"> x {WIDEST}: the interval is wider than this factor, so make more runs"
        notes = [note] if any(_USELESS in row for row in rows) else []
        yield Table("numbers", "Numbers", "", heads, rows, notes)


_MARKS = {
    "VALID": {"color": VALID, "symbol": "circle"},
    "INVALID": {"color": INVALID, "symbol": "x"},
}

WIDE = 5
"""The axis is logarithmic if the largest value exceeds the smallest by more than this factor."""

NEAR = 3
"""The plot shows a bound up to this multiple of the largest value. A bound farther away would flatten the runs."""


def figures(content: Content) -> Iterator[Figure]:
    """Yields a plot of the deciding number in each run, and beside the runs of their mean with its interval; nothing
    without an interval.
    """
    name = content.get("deciding", "")
    number = content["numbers"].get(name)
    if number is None or number["interval"] is None:
        return
    unit, scale = ("ms", 1 / NS_PER_MS) if number["unit"] == "ns" else (number["unit"], 1.0)
    low, high = (v * scale for v in number["interval"])
    values = [rounded(v, scale) for v in number["values"]]
    runs = [*zip(map(str, range(1, len(values) + 1)), values, content["verdicts"], strict=True)]
    drawn = []
    for verdict, marker in _MARKS.items():
        own = [(run, value) for run, value, one in runs if (one == "VALID") is (verdict == "VALID")]
        if own:
            x, y = zip(*own, strict=True)
            drawn.append(line(verdict, x, y, mode="markers", marker={"size": 10, **marker}))
    mean = (number["mean"] or 0.0) * scale
    ends = {"array": [rounded(high - mean)], "arrayminus": [rounded(mean - low)]}
    whisker = {"type": "data", "symmetric": False, **ends, "width": 6}
    middle = {"size": 12, "symbol": "diamond"}
    drawn.append(
        line(
            "geometric mean",
            ["mean"],
            [rounded(mean)],
            mode="markers",
            marker=middle,
            error_y=whisker,
        )
    )
    known = [low, high, *filter(None, values)]
    bounds_ms = [
        slo.bound_ns / NS_PER_MS for slo in parse_slos(content.get("slo") or "") if slo.name == name
    ]
    near_ms = [bound_ms for bound_ms in bounds_ms if bound_ms <= NEAR * max(known)]
    known += near_ms
    is_wide = min(known) > 0 and max(known) > WIDE * min(known)
    names = [*(run for run, *_ in runs), "mean"]
    layout = {
        "xaxis": {
            "title": "run",
            "type": "category",
            "categoryorder": "array",
            "categoryarray": names,
            "range": [-0.5, len(names) - 0.5],
        },
        "yaxis": {"title": f"{name}, {unit}", **({"type": "log"} if is_wide else {})},
        "shapes": [one for ms in near_ms for one in bound_line(ms, "y")],
    }
    level = show_percent(content["level"])
    yield Figure("Runs", f"The line through the mean is its {level} interval.", drawn, layout)


def _rows(content: Content) -> Iterator[list[str]]:
    first = content.get("deciding")
    for name, number in sorted(content["numbers"].items(), key=lambda one: one[0] != first):
        if number["mean"] is None:
            continue
        values = [value for value in number["values"] if value is not None]
        interval = f"needs {LEAST_RUNS} runs or more"
        if number["interval"] is not None:
            low, high = number["interval"]
            interval = f"{_shown(low, number)} to {_shown(high, number)}"
            if is_useless(low, high):
                interval = _USELESS
        mean, least, most = (
            _shown(value, number) for value in (number["mean"], min(values), max(values))
        )
        yield [ESTIMATE if name == "headline" else name, mean, interval, least, most]


def _shown(value: float, number: NumberEntry) -> str:
    """Formats a value.

    number: contains the `unit`. A rate is followed by `/s`, because each column contains numbers with several units.
    """
    if number["unit"].endswith("/s"):
        return f"{show_rate(value)}/s"
    return show_cell(value, number["unit"])
