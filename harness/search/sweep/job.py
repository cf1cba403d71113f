"""Measures latency against offered load (`sweep`), with one run per rate, in ascending order.

The folder contains the runs in `points/` and a summary of them in sweep.json, sweep.csv and sweep.html. The same
command with the same --out continues a stopped sweep, or adds rates.
"""

import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple, cast

from harness.core import files
from harness.core.config.parse import leading, parse_rate
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig, from_plain, to_plain
from harness.core.config.schema import MAX_QUERIES
from harness.core.console import say
from harness.core.stats import queries_needed
from harness.core.units import NS_PER_S, show_rate
from harness.errors import ConfigError, RunInvalid, some_of
from harness.loadgen.scenario import scenario_named
from harness.models.manifest.defaults import slos_of
from harness.results import run_folder
from harness.results.outcome import Finished
from harness.run.study import (
    Ended,
    Study,
    is_client_bound,
    unfit_options,
    write_csv,
    write_page,
)
from harness.run.supervisor.progress import NOTED
from harness.search.options import COLD, WARM, PeakOptions, SweepOptions, cache_share
from harness.search.peak.job import PeakJob
from harness.search.peak.probe import model_ns
from harness.search.sweep import caches, table
from harness.search.sweep.content import Content, Point, Summary
from harness.search.sweep.table import is_usable, knee, point_of
from harness.search.token_times import FIELDS

SWEEP = "sweep.json"
_POINTS = "points"

MOST_BOUND = 2
"""If the client was the limit at this many successive rates, higher rates are skipped for the same cache state."""


class _Due(NamedTuple):
    """A rate for which points are still missing."""

    rate: float
    caches: Sequence[str]
    """Cache states to measure, in order."""


def problems(config: RunConfig, options: SweepOptions) -> Iterator[str]:
    if not scenario_named(config.scenario).scheduled:
        yield f"sweep is for --scenario server: {config.scenario} has no rate to offer"
    if config.target_qps is not None:
        yield "--target-qps sets a single rate: sweep takes --rate, e.g. --rate 100..2000"
    yield from caches.problems(config, options.cache)
    yield from unfit_options(config, "sweep", "sweep makes quick runs: drop --mlperf")


def show_stored(folder: Path, *, as_json: bool = False) -> int:
    """Prints the table from the stored result folders of the points (--from)."""
    stored = files.read_json(folder / SWEEP)
    if not isinstance(stored.get("config"), dict):
        raise ConfigError(f"{folder / SWEEP} was not written by `sweep`")
    config = from_plain({**stored["config"], "out": str(folder)}, str(folder / SWEEP))
    _SweepJob(config, SweepOptions(), _measure_nothing, quiet=True).show(as_json=as_json)
    return 0


def _measure_nothing(_config: RunConfig, **_: object) -> Finished:
    raise AssertionError("--from measures nothing")


class _SweepJob(Study[SweepOptions]):
    file = SWEEP
    continuation = "the same command with --out {folder} continues it"

    def _begin(self) -> None:
        config = self._config
        self._rates = self._options.rate
        self._caches: Sequence[str] = self._options.cache or ("",)
        self._peak = self._options.peak
        self._peak_is_measured = False
        self._planned: Sequence[float] = ()
        """The requested rates in queries/s; empty until they are known."""
        self._stored_left = 0
        self._fastest_ns: float | None = None
        self._bound: Counter[str] = Counter()
        self._beginning = ""
        self._slos = slos_of(self._scenario, config, self._model)
        self._slo = leading(self._slos)
        percentiles = [slo.percentile for slo in self._slos]
        self._percentile = max(percentiles, default=self._scenario.percentile)
        least = queries_needed(0, self._percentile)
        if config.queries is not None and config.queries < least:
            raise ConfigError(
                f"--queries {config.queries:,}: p{self._percentile * 100:g} needs at least {least:,} "
                "queries: drop --queries, or pass more"
            )
        self._plain = to_plain(replace(config, out=None))
        if self._open_folder("sweep-server", config.backend, self._model.name):
            self._take_stored(cast("Content", files.read_json(self.folder / SWEEP)))

    def _take_stored(self, stored: Content) -> None:
        config = stored.get("config")
        self._check_same("sweep", self._plain, config if isinstance(config, dict) else {})
        if self._peak is None:
            self._peak = stored.get("peak")
            self._peak_is_measured = stored.get("peak_is_measured", False)
        self._fastest_ns = stored.get("fastest_ns")
        self._stored_left = stored.get("left", 0)

    def run(self) -> int:
        """Performs the runs. Returns 4 if no point was VALID, and 0 otherwise."""
        self._fastest_ns = None
        self._make_runs()
        from harness.search.sweep.page import write

        content = self.content()
        write_page(write, content, self.folder)
        return 0 if content["highest_valid"] is not None else RunInvalid.exit_status

    def _make_runs(self) -> None:
        if not (self.folder / SWEEP).is_file():
            # The file is written first, because the same command later uses it to recognise its folder.
            self._save()
        if self._rates.are_shares and self._peak is None:
            self._find_peak()
            self._save()
        offered = self._planned = self._offered()
        self._save()
        due = self._due(offered)
        self._announce_longer(due)
        was_late = False
        for number in range(len(due)):
            result = self._run_all(due[number:], len(due))
            is_late = self._is_late(result)
            if is_late and (was_late or self._is_beyond_the_model(result)):
                self._fastest_ns = result["latency_ns"]["min"]
                self._save()
                return
            was_late = is_late

    def _announce_longer(self, due: Sequence[_Due]) -> None:
        """Names the lowest remaining rate whose run takes longer than --duration, and the reason."""
        lowest = min((one.rate for one in due), default=None)
        if lowest is None or self._config.queries is not None:
            return
        queries, asked_s = self._queries(lowest), self._config.duration_ns / NS_PER_S
        if queries > NOTED * asked_s * lowest and not self._quiet:
            say(
                f"p{self._percentile * 100:.10g} needs {queries:,} queries, which take {queries / lowest:.1f} s at {lowest:g} "
                f"queries/s, longer than --duration ({asked_s:g} s)"
            )

    def _due(self, offered: Sequence[float]) -> list[_Due]:
        """Returns the rates that lack a usable point in some cache state, with the states that are missing."""
        usable = [point for point in self._points() if is_usable(point)]
        due = []
        for rate in dict.fromkeys(offered):
            measured = {point["cache"] for point in usable if point["rate_per_s"] == rate}
            due.append(_Due(rate, caches.missing(self._caches, measured)))
        return [one for one in due if one.caches]

    def _run_all(self, left: Sequence[_Due], count: int) -> Mapping[str, Any]:
        """Performs the runs at the first rate in `left`, one for each cache state that the rate lacks.

        Returns the last result; empty if no run was made. left: rates that have not been measured yet. count: number of
        rates to measure.
        """
        result: Mapping[str, Any] = {}
        rate, states = left[0]
        for number, cache in enumerate(states):
            if self._is_given_up(cache):
                continue
            now = [_Due(rate, states[number:]), *left[1:]]
            result = self._run(now, count)
            if is_client_bound(result):
                result = self._run(now, count, " again")
            self._count_bound(cache, is_bound=is_client_bound(result))
        return result

    def _is_given_up(self, cache: str) -> bool:
        needed = (COLD, WARM) if cache == WARM else (cache,)
        return any(self._bound[one] >= MOST_BOUND for one in needed)

    def _count_bound(self, cache: str, *, is_bound: bool) -> None:
        """Counts successive rates at which the client was the limit."""
        self._bound[cache] = self._bound[cache] + 1 if is_bound else 0
        if self._is_given_up(cache):
            state = f" with the state {cache}" if cache else ""
            say(
                f"the client was the limit at {MOST_BOUND} rates in a row: no higher rate{state} is tried"
            )

    def _is_late(self, result: Mapping[str, Any]) -> bool:
        """Returns whether even the fastest answer was later than the SLO's bound. Returns False for a run that the
        client limited.
        """
        if not result or is_client_bound(result):
            return False
        least_ns = (result["latency_ns"] or {}).get("min")
        return self._slo is not None and least_ns is not None and least_ns > self._slo.bound_ns

    def _is_beyond_the_model(self, result: Mapping[str, Any]) -> bool:
        return self._slo is not None and (model_ns(result) or 0) > self._slo.bound_ns

    def _find_peak(self) -> None:
        """Uses the peak from an earlier search in this folder; if no such search exists, searches in the same way as
        `peak`.
        """
        folder = self.folder / "peak"
        if not (folder / run_folder.PEAK).is_file():
            out = files.free_name(folder)
            config = replace(self._config, out=out)
            if self._caches[0]:
                config = caches.config_of(config, self._caches[0], "on")
            self._note_progress("search for the peak, which sets the rates", None)
            job = PeakJob(config, PeakOptions(), self._measure, quiet=self._quiet)
            status = job.attempt()
            if status == RunInvalid.exit_status:
                say(
                    f"{job.folder}: no peak was found: pass --rate A..B in queries/s, which needs no peak"
                )
            if status:
                raise Ended(status, "no peak was found, so the sweep has no rates")
            folder = job.folder
            for text in job.content()["warnings"]:
                say(f"{folder}: {text}")
        self._peak = float(files.read_json(folder / run_folder.PEAK)["peak"])
        self._peak_is_measured = True

    def _offered(self) -> list[float]:
        """Returns the rates in queries/s. Raises a ConfigError with one line for each rate that no run can offer."""
        scale = (self._peak or 1.0) if self._rates.are_shares else 1.0
        rates = [float(f"{value * scale:.6g}") for value in self._rates.values]
        if problems := [problem for rate in rates for problem in self._problems(rate)]:
            raise ConfigError(some_of(problems))
        return rates

    def _problems(self, rate: float) -> Iterator[str]:
        try:
            parse_rate(f"{rate:.10g}")
        except ValueError as e:
            yield f"--rate: {e}"
        if (queries := self._queries(rate)) > MAX_QUERIES:
            yield (
                f"--rate: {rate:g} queries/s give {queries:,} queries in --duration, more than "
                f"{MAX_QUERIES:,}: shorten it"
            )

    def _queries(self, rate: float) -> int:
        config = self._config
        queries = ceil(config.duration_ns / NS_PER_S * rate)
        return config.queries or max(queries, queries_needed(1, self._percentile))

    def _run(self, left: Sequence[_Due], count: int, again: str = "") -> Mapping[str, Any]:
        """Performs a run at the first rate in `left`, in the first missing state. Returns the run's result.

        again: end of the run's name in the progress display. All other arguments are as in `_run_all`.
        """
        rate, (cache, *_) = left[0]
        config = self._config
        if cache:
            # In a cold run, the prompts get a new beginning, because the cache may still hold an earlier run's prompts.
            if cache != WARM:
                self._beginning = secrets.token_hex(8)
            config = caches.config_of(config, cache, self._beginning)
        out = files.free_name(self.folder / _POINTS / caches.folder_name(cache, rate))
        config = replace(config, target_qps=rate, queries=self._queries(rate), out=out)
        planned_s = [self._queries(one.rate) / one.rate for one in left for _ in one.caches]
        number = count - len(left) + 1
        state = f", {cache}" if cache else ""
        text = f"rate {number} of {count}, {show_rate(rate)} queries/s{state}{again}"
        finished = self.make_run(config, text, planned_s)
        self._say(f"{text}: {finished.in_short('p99')}{self.time_left(planned_s[1:])}")
        self._save()
        if not is_client_bound(finished.result):
            self._check_answered(finished, "the sweep ends here")
        return finished.result

    def _points(self) -> list[Point]:
        """Returns the points of finished runs whose result depends on the rate or on the client, in ascending order.

        If a point was measured several times, its last usable run counts; if no run is usable, its last run counts.
        """
        points = []
        for path in (self.folder / _POINTS).glob(f"*/{run_folder.RESULT}"):
            if path.parent.is_symlink() or path.parent.name.endswith(files.PARTIAL):
                continue
            result = files.read_json(path)
            with files.reading(f"{path} is not a valid result of a run", "run `check` for details"):
                points.append(point_of(result, path.parent, self.folder, self._peak))
        found = sorted(
            (p for p in points if p), key=lambda p: (p["rate_per_s"], _place(p), p["folder"])
        )
        by_use = sorted(found, key=is_usable)
        last = {(p["rate_per_s"], p["cache"]): p for p in by_use}
        return [p for p in found if last[p["rate_per_s"], p["cache"]] is p]

    def content(self) -> Content:
        points = self._points()
        valid = [p["rate_per_s"] for p in points if p["verdict"] == "VALID"]
        own = {
            cache: [p for p in points if p["cache"] == cache]
            for cache in dict.fromkeys(p["cache"] for p in points if p["cache"])
        }
        return {
            "schema_version": SCHEMA_VERSION,
            "config": self._plain,
            "model": self._model.name,
            "slo": " ".join(map(str, self._slos)) or None,
            "peak": self._peak,
            "peak_is_measured": self._peak_is_measured,
            "highest_valid": max(valid, default=None),
            "knee": None if own else knee(points),
            "by_cache": {cache: _summary(mine) for cache, mine in own.items()},
            "fastest_ns": self._fastest_ns,
            "left": len({*self._planned} - {p["rate_per_s"] for p in points})
            if self._planned
            else self._stored_left,
            "points": points,
        }

    def lines(self) -> Iterator[str]:
        return table.lines(self.content(), self.folder)

    def _save(self) -> None:
        super()._save()
        columns = [*(name for name in Point.__annotations__ if name != "token_times"), *FIELDS]
        points = ({**point, **(point["token_times"] or {})} for point in self.content()["points"])
        rows = ([point.get(name) for name in columns] for point in points)
        write_csv(self.folder / "sweep.csv", columns, rows)


def _place(point: Point) -> tuple[int, float]:
    """Returns a key that sorts points at the same rate by cache state."""
    if point["cache"] in ("", COLD, WARM):
        return ("", COLD, WARM).index(point["cache"]), 0.0
    return 3, cache_share(point["cache"]) or 0.0


def _summary(points: Sequence[Point]) -> Summary:
    valid = [p["rate_per_s"] for p in points if p["verdict"] == "VALID"]
    return {"knee": knee(points), "highest_valid": max(valid, default=None)}


sweep = _SweepJob.execute
