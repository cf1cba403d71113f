"""Searches for the highest valid rate under an SLO (`peak`) with ordinary runs.

Each probe runs in a new process with the same seeds, so a short probe's arrivals are the first arrivals of a full run.
The result is the full VALID run with the highest load. The files of this run move to the result folder, all other runs
stay in `probes/`, and `peak.json` lists all runs.
"""

import sqlite3
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from harness.core.config.parse import searched
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig
from harness.core.console import say
from harness.core.registry import SCENARIOS
from harness.core.units import NS_PER_S, show_rate
from harness.errors import ConfigError, RunInvalid, one_line
from harness.loadgen import user_conf
from harness.loadgen.scenario import TURNS, scenario_named
from harness.models.manifest.defaults import slos_of
from harness.results import database, run_folder
from harness.results.outcome import Finished
from harness.results.slos.shown import attainment
from harness.results.steady.shown import verdict_of
from harness.run.study import Study, is_client_bound, other_reason, unfit_options, write_page
from harness.search.options import PeakOptions
from harness.search.peak import table
from harness.search.peak.content import Content, Probe
from harness.search.peak.probe import (
    Judge,
    answered,
    axis_of,
    busy_share,
    model_ns,
    model_per_s,
)
from harness.search.peak.search import KEPT_FOR_FULL, MOST_FAILURES, RUNS, Found, Limits, search
from harness.search.token_times import times_of

CALIBRATION_QUERIES = 100

_MANY_FAILURES = 3
"""The time left is not estimated after this many failed runs without a run that passed."""


def problems(config: RunConfig, options: PeakOptions) -> Iterator[str]:
    scenario = scenario_named(config.scenario)
    if scenario.search_axis is None:
        names = " and ".join(name for name in SCENARIOS if scenario_named(name).search_axis)
        yield f"peak is for --scenario {names}: {config.scenario} has no rate to find"
    elif scenario.default_slo is None and not config.slo:
        yield f"the peak of {config.scenario} depends on an SLO: pass one, e.g. --slo p99=50ms"
    yield from unfit_options(
        config,
        "peak",
        "peak makes quick runs: drop --mlperf, and use --write-user-conf FILE for an official run",
    )
    if config.queries is not None:
        yield "peak sets the length of its runs with --duration and --probe: drop --queries"
    if config.arrivals is not None:
        yield "peak searches for the load: drop --arrivals, which sets it"
    if options.write_user_conf is not None:
        yield from _file_problems(config, options.write_user_conf)


def _file_problems(config: RunConfig, file: Path) -> Iterator[str]:
    if config.concurrency is not None or config.streams is not None:
        yield "--write-user-conf cannot be used, because MLPerf has no load with a fixed concurrency and no streams: drop it"
    elif any(slo.of == "itl" for slo in config.slo):
        yield "--write-user-conf cannot be used, because LoadGen has no bound on the time between tokens: drop it, or the SLO"
    elif scenario_named(config.scenario).by_query:
        yield (
            f"--write-user-conf cannot be used, because the official rules fix {config.scenario}'s samples per query at 8: drop it"
        )
    if file.exists():
        yield f"--write-user-conf {file} already exists: pass a different file"
    elif not file.absolute().parent.is_dir():
        yield f"--write-user-conf {file}: the folder {file.parent} does not exist"


class _OutOfReach(Exception):
    """Raised if no load can pass, because even the fastest answer (fastest_ns) missed the SLO's bound."""

    def __init__(self, fastest_ns: int) -> None:
        super().__init__(fastest_ns)
        self.fastest_ns = fastest_ns


class PeakJob(Study[PeakOptions]):
    file = run_folder.PEAK

    def _begin(self) -> None:
        config = self._config
        axis = axis_of(config)
        assert axis is not None  # because `problems` refuses the other scenarios
        self._axis = axis
        self._slos = slos_of(self._scenario, config, self._model)
        slo = searched(self._slos)
        assert slo is not None  # because `problems` refuses a run without an SLO
        self._slo = slo
        self._judge = Judge(self._scenario, slo, self._model.frame_period_ns)
        self._results = self._new_folder(
            f"peak-{config.scenario}", config.backend, self._model.name
        )
        self._probes: list[Probe] = []
        self._found: Found | None = None
        self._fastest_ns: int | None = None
        self._best: tuple[float, Probe, Finished] | None = None

    def run(self) -> int:
        """Performs the search. Returns 4 if no load passed or if user.conf could not be written, and 0 otherwise."""
        self._save()  # `browse` shows what is searched for
        self._search()
        self._save()
        return self._publish()

    def has_measured(self) -> bool:
        return bool(self._probes)

    def lines(self) -> Iterator[str]:
        return table.lines(self.content(), self.folder)

    def _search(self) -> None:
        config = self._config
        start, left = config.target_qps or config.concurrency or config.streams, RUNS
        axis = self._axis
        try:
            if start is None:
                start, left = self._calibrated(), RUNS - 1
            limits = Limits(axis.least, axis.most, left, axis.whole)
            self._found = search(self._ask, start, limits)
        except _OutOfReach as e:
            self._fastest_ns = e.fastest_ns
            self._found = Found(None, None)
        except ConfigError as e:
            if self._best is None:
                raise
            self._ended_early = one_line(e)
            load = self._best[0]
            failed = (
                p["load"] for p in self._probes if p["passed"] is False and p["load"] is not None
            )
            self._found = Found(load, min((at for at in failed if at > load), default=None))

    def _calibrated(self) -> float:
        """Returns the starting load: half of the capacity that a run with few queries suggests."""
        finished = self._run("calibration", replace(self._config, queries=CALIBRATION_QUERIES))
        self._check_fastest(finished)
        if self._scenario.scheduled:
            return float(finished.result["calibration"]["rate_per_s"]) / 2
        samples = int(finished.result["queries"]["samples_per_query"])
        mean_ns = float(finished.result["latency_ns"]["mean"])
        return max(1.0, samples * self._slo.bound_ns / max(mean_ns, 1.0) / 2)

    def _check_fastest(self, finished: Finished) -> None:
        """Raises _OutOfReach if every answer of the first run was late and no answer can be on time.

        No answer can be on time if the model alone takes longer than the bound in the bare loops before and after the
        run. Otherwise, a second run at the lowest load decides, because a stall can delay all answers in a single run.
        """
        first_ns = self._judge.fastest_ns(finished)
        if first_ns is None or first_ns <= self._slo.bound_ns:
            return
        if (model_ns(finished.result) or 0) > self._slo.bound_ns:
            raise _OutOfReach(first_ns)
        axis = self._axis
        least: dict[str, Any] = {axis.field: int(axis.least) if axis.whole else None}
        config = replace(self._config, queries=CALIBRATION_QUERIES, **least)
        again_ns = self._judge.fastest_ns(self._run("calibration", config))
        fastest_ns = min(first_ns, again_ns or first_ns)
        if fastest_ns > self._slo.bound_ns:
            raise _OutOfReach(fastest_ns)

    def _ask(self, load: float, full: bool) -> bool:
        changed: dict[str, Any] = {self._axis.field: int(load) if self._axis.whole else load}
        config = replace(self._config, **changed)
        judge, probe_ns = self._judge, self._options.probe_ns
        queries = judge.full_queries(config) if full else judge.probe_queries(config, probe_ns)
        # A probe with a fixed concurrency is a closed loop, which issues at least TURNS x concurrency queries.
        queries = max(queries, TURNS * (config.concurrency or 0))
        allowed = judge.allowed(config, queries)
        kind = "full" if full else "probe"
        is_first = not self._probes
        try:
            finished = self._run(kind, replace(config, queries=queries), allowed)
        except ConfigError as e:  # because, for example, the queries may not fit into memory
            if not self._probes:
                raise
            raise ConfigError(f"at {show_rate(load)} {self._axis.unit}: {e}") from None
        passed = bool(self._probes[-1]["passed"])
        if is_first and not passed:
            self._check_fastest(finished)
        return passed

    def _run(self, kind: str, config: RunConfig, allowed: int | None = None) -> Finished:
        """Performs a run and records it. allowed: the run passes with at most this many late queries; None for a
        calibration.
        """
        number = len(self._probes) + 1
        planned_s = self._planned_s(kind) or [0.0]
        # At a low rate, the minimum number of queries takes longer than the requested time.
        if config.queries and config.target_qps:
            planned_s[0] = max(planned_s[0], config.queries / config.target_qps)
        load = getattr(config, self._axis.field)
        name = f"{number:02}-{kind if load is None or allowed is None else f'{load:.10g}'}"
        if kind != "full":
            config = replace(config, mode="performance", meter=())
        begun = time.monotonic()
        what = {"probe": "short run", "full": "full run"}.get(kind, kind)
        at = what if load is None else f"{what} at {show_rate(load)} {self._axis.unit}"
        if number > RUNS:
            at += ", because no load has passed"
        most = number - 1 + len(planned_s)
        bound = self._bound()
        finished = self.make_run(
            replace(config, out=self.folder / "probes" / name),
            f"run {number} of {bound} {most}: {at}",
            planned_s,
            bound=bound if self._is_time_known else None,
            is_total_known=self._best is not None,
            most_late=None if allowed is None else (lambda _plan: allowed),
        )
        probe = self._probe(kind, load, finished, allowed, time.monotonic() - begun)
        self._probes.append(probe)
        if kind == "full" and probe["passed"] and (not self._best or load > self._best[0]):
            self._best = load, probe, finished
        self._save()
        is_estimated = probe["ended"] is None and self._is_time_known
        left = self.time_left(self._planned_s(kind), self._bound()) if is_estimated else ""
        self._say(table.progress(number, probe, self._axis.unit) + left)
        # A client-bound calibration does not end the search, because the search starts at half of this load, which the
        # client may be able to sustain.
        if not is_client_bound(finished.result):
            what = "this run does not show whether its load can be sustained, so the search ends"
            self._check_answered(finished, what)
        return finished

    def _bound(self) -> str:
        """Returns how exact the number of runs is: more follow until a full run has passed."""
        if self._best or len(self._probes) >= RUNS:
            return "at most"
        return "at least" if self._failures else "about"

    @property
    def _failures(self) -> int:
        """Number of runs that failed before a load passed; 0 as soon as one has passed."""
        judged = [one["passed"] for one in self._probes if one["passed"] is not None]
        return 0 if any(judged) else len(judged)

    @property
    def _is_time_known(self) -> bool:
        """Whether the time left can be estimated. After several failures, the search goes down to low loads, at which a
        run takes an unknown time.
        """
        return self._failures < _MANY_FAILURES

    def _planned_s(self, kind: str) -> list[float]:
        """Returns the planned durations of a run of this kind and of the runs that may follow it."""
        full_s, probe_s = self._config.duration_ns / NS_PER_S, self._options.probe_ns / NS_PER_S
        made = len(self._probes)
        most = RUNS if made < RUNS or self._best else RUNS + MOST_FAILURES
        left = max(0, most - made)
        full = left if kind == "full" else min(left, KEPT_FOR_FULL)
        return [probe_s] * (left - full) + [full_s] * full

    def _probe(
        self, kind: str, load: float | None, finished: Finished, allowed: int | None, seconds: float
    ) -> Probe:
        """Returns a run's entry in peak.json. load: the configured load; None if the run calibrates the load."""
        result = finished.result
        queries, throughput = result["queries"] or {}, result["throughput_per_s"] or {}
        load = load or {"target_qps": throughput.get("asked"), **queries}.get(self._axis.field)
        late, ended = self._judge.late(finished, allowed), other_reason(result)
        judged = allowed is not None and ended is None
        planned = int(queries.get("planned") or 0)
        return Probe(
            kind=kind,
            load=None if load is None else float(load),
            passed=self._judge.passed(finished, kind, late, allowed or 0) if judged else None,
            ended=ended.code if ended is not None else None,
            queries=planned if ended is None else answered(queries),
            answered=answered(queries),
            late=late,
            latency_ns=result["latency_ns"],
            scheduled_per_s=throughput.get("scheduled"),
            completed_per_s=throughput.get("completed"),
            mean_batch=queries.get("mean_batch"),
            busy_share=busy_share(result),
            model_per_s=model_per_s(result),
            verdict=result["verdict"],
            reasons=tuple(reason["code"] for reason in result["reasons"]),
            doubts=tuple(doubt["code"] for doubt in result["doubts"]),
            seconds=round(seconds, 3),
            folder=str(finished.folder.relative_to(self.folder)),
            goodput_per_s=(result.get("goodput") or {}).get("per_s"),
            token_times=times_of(result),
            steady=verdict_of(result),
            **attainment(result),
        )

    def _publish(self) -> int:
        """Gives the folder its final name. If a full run passed, first moves the files of the best one into it."""
        if self._best is None:
            self.folder = self._results.finish(newest=False)
            self._write_page()
            return RunInvalid.exit_status
        load, probe, finished = self._best
        self._results.adopt(finished.folder)
        probe["folder"] = "."
        # The link is removed because it may point to the full run, which was moved.
        (self.folder / "probes" / "latest").unlink(missing_ok=True)
        self._save()
        self.folder = self._results.finish()
        try:
            database.add(self.folder.parent, self.folder.name, finished.result, peak=load)
        except sqlite3.Error as e:
            say(f"{database.path_in(self.folder.parent)}: the run was not added: {e}")
        file, status = self._options.write_user_conf, 0
        if file is not None and not self._write_user_conf(file, load, probe["queries"]):
            status = RunInvalid.exit_status
        if not self._config.no_report:
            from harness.results.pages.report import report

            write_page(partial(report, standalone=False), self.folder, None)
        self._write_page()
        return status

    def _write_page(self) -> None:
        if not self._config.no_report:
            from harness.search.peak.page import write

            write_page(write, self.content(), self.folder)

    def _write_user_conf(self, file: Path, load: float, queries: int) -> bool:
        """Writes the file. If writing fails, prints a line on stderr and returns False."""
        about = (
            f"the highest rate found VALID under {' '.join(map(str, self._slos))}, by a run of {queries:,} queries\n"
            f"({self.folder.name}): in a run of 600 s, more of its queries may be late"
        )
        about = "\n".join([about, *(f"warning: {text}" for text in self.content()["warnings"])])
        try:
            file.write_text(user_conf.server_text(load, self._slos, about), encoding="utf-8")
        except OSError as e:
            say(f"--write-user-conf {file} cannot be written ({e.strerror}): see {self.folder}")
            return False
        return True

    def _lowest_failed(self) -> float | None:
        """Returns the lowest failed load above the peak so far."""
        peak = self._best[0] if self._best else inf
        failed = [one["load"] or 0.0 for one in self._probes if one["passed"] is False]
        return min((load for load in failed if load > peak), default=None)

    def content(self) -> Content:
        above = self._found.above if self._found else self._lowest_failed()
        kinds = {p["kind"] for p in self._probes if p["passed"] is False and p["load"] == above}
        content: Content = {
            "schema_version": SCHEMA_VERSION,
            "started": self._started,
            "scenario": self._config.scenario,
            "backend": self._config.backend,
            "model": self._model.name,
            "slo": " ".join(map(str, self._slos)),
            "unit": self._axis.unit,
            "finished": self._found is not None,
            "peak": self._best[0] if self._best else None,
            "failed_above": above,
            "failed_above_kind": None if above is None else "full" if "full" in kinds else "probe",
            "ended_early": self._ended_early,
            "fastest_ns": self._fastest_ns,
            "probes": self._probes,
            "warnings": (),
        }
        return {**content, "warnings": list(table.warnings(content))}


find = PeakJob.execute
