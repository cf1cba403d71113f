"""`peak`: the highest valid rate under an SLO, by runs of the harness itself.

Each probe is an ordinary run in a process of its own, with the same seeds: a short probe's arrivals
are the beginning of a full-length run's. What is found is the full-length run that was VALID; its
files become the folder's own, the probes' lie in `probes/`, and `peak.json` tells of all of them.
"""

import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness.core import files
from harness.core.codes import INTERRUPTED
from harness.core.config.run_config import SCHEMA_VERSION, RunConfig
from harness.core.console import say
from harness.core.registry import SCENARIOS
from harness.core.units import show_rate
from harness.errors import ConfigError, HarnessError, RunInvalid, one_line
from harness.loadgen import user_conf
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import TURNS, scenario_named
from harness.models.manifest.defaults import slo_of
from harness.models.manifest.lookup import load_model
from harness.results import database, run_folder
from harness.results.outcome import Finished, Measure
from harness.run.jobs import conclude, keep_or_remove
from harness.search.options import PeakOptions
from harness.search.peak import table
from harness.search.peak.probe import (
    Judge,
    Probe,
    answered,
    axis_of,
    busy_share,
    other_reason,
)
from harness.search.peak.search import Found, Limits, search

RUNS = 12
"""Of one search: calibration, probes and full-length runs together."""

CALIBRATION_QUERIES = 100


def problems(config: RunConfig, options: PeakOptions) -> Iterator[str]:
    """All that stands against a search with these options."""
    scenario = scenario_named(config.scenario)
    if scenario.search_axis is None:
        found = (name for name in reversed(SCENARIOS) if scenario_named(name).search_axis)
        names = " and ".join(found)
        yield f"peak is for --scenario {names}: {config.scenario} has no rate to find"
    elif scenario.default_slo is None and config.slo is None:
        yield f"the peak of {config.scenario} is that under an SLO: give one, e.g. --slo p99=50ms"
    if config.mlperf:
        yield "peak searches with quick runs: drop --mlperf; --write-user-conf FILE is for it"
    if config.mode == "accuracy":
        yield "peak needs performance runs: drop --mode accuracy"
    if config.metrics_linger_ns:
        yield "--metrics-linger waits after one run, peak makes many: drop it"
    if config.queries is not None:
        yield "peak sizes its runs by --duration and --probe: drop --queries"
    if config.arrivals is not None:
        yield "peak searches for a load: drop --arrivals, which is one"
    if options.write_user_conf is not None:
        yield from _file_problems(config, options.write_user_conf)


def _file_problems(config: RunConfig, file: Path) -> Iterator[str]:
    if config.concurrency is not None:
        yield "--write-user-conf: a number in flight is no load of MLPerf's: drop it"
    elif scenario_named(config.scenario).by_query:
        yield (
            f"--write-user-conf: the official rules fix {config.scenario}'s samples per query at 8"
        )
    if file.exists():
        yield f"--write-user-conf {file} exists: pass another"
    elif not file.absolute().parent.is_dir():
        yield f"--write-user-conf {file}: there is no folder {file.parent}"


def find(
    config: RunConfig,
    options: PeakOptions,
    measure: Measure,
    *,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Searches, prints the table (or peak.json) and returns the exit status."""
    job = PeakJob(config, options, measure, quiet=quiet)
    return conclude(job, table.lines, as_json=as_json)


class _Ended(Exception):
    """A run said nothing about its load, or was stopped. status: the exit status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


class _OutOfReach(Exception):
    """No load can pass. fastest_ns: of all answers so far, longer than the SLO's bound."""

    def __init__(self, fastest_ns: int) -> None:
        super().__init__(fastest_ns)
        self.fastest_ns = fastest_ns


class PeakJob:
    """One search. folder: where it lies by now."""

    def __init__(
        self, config: RunConfig, options: PeakOptions, measure: Measure, *, quiet: bool
    ) -> None:
        self._config = config
        self._options = options
        self._measure = measure
        self._quiet = quiet
        axis = axis_of(config)
        assert axis is not None  # `problems` refuses the others
        self._axis = axis
        self._scenario = scenario = scenario_named(config.scenario)
        model = load_model(config.model)
        slo = slo_of(scenario, config, model)
        assert slo is not None
        self._slo = slo
        self._judge = Judge(scenario, slo)
        self._model_name = model.name
        words = (f"peak-{config.scenario}", config.backend, model.name)
        self._results = run_folder.new_folder(config.out, *words)
        self.folder = self._results.path
        self._started = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._probes: list[Probe] = []
        self._found: Found | None = None
        self._ended_early: str | None = None
        self._fastest_ns: int | None = None
        self._best: tuple[float, Probe, Finished] | None = None

    def run(self) -> int:
        """Returns the exit status: 4 where no load passed or user.conf could not be written, a run's own
        where that ended the search.
        """
        with keep_or_remove(lambda: self.folder, lambda: bool(self._probes)):
            try:
                self._search()
                self._save()
                return self._publish()
            except _Ended as e:
                return e.status

    def _search(self) -> None:
        start, left = self._config.target_qps or self._config.concurrency, RUNS
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
            self._found = Found(self._best[0], self._lowest_failure_above(self._best[0]))

    def _kind_of_failure(self, load: float) -> str:
        """full where a full-length run failed at that load, else probe: a short one may be wrong."""
        failed = {p.kind for p in self._probes if p.passed is False and p.load == load}
        return "full" if "full" in failed else "probe"

    def _lowest_failure_above(self, load: float) -> float | None:
        failed = (p.load for p in self._probes if p.passed is False and p.load is not None)
        return min((at for at in failed if at > load), default=None)

    def _calibrated(self) -> float:
        """Half of what a run of few queries makes likely."""
        finished = self._run("calibration", replace(self._config, queries=CALIBRATION_QUERIES))
        self._check_fastest(finished)
        if self._scenario.scheduled:
            return float(finished.result["calibration"]["rate_per_s"]) / 2
        samples = int(finished.result["queries"]["samples_per_query"])
        mean_ns = float(finished.result["latency_ns"]["mean"])
        return max(1.0, samples * self._slo.bound_ns / max(mean_ns, 1.0) / 2)

    def _check_fastest(self, finished: Finished) -> None:
        """Raises _OutOfReach where no answer of the search's first run was in time, and none is at the
        least load either. One run alone may have been late throughout because of a stall.
        """
        first_ns = self._judge.fastest_ns(finished)
        if first_ns is None or first_ns <= self._slo.bound_ns:
            return
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
        queries = max(queries, TURNS * (config.concurrency or 0))  # a probe closes the loop, too
        allowed = judge.allowed(config, queries)
        kind = "full" if full else "probe"
        is_first = not self._probes
        try:
            finished = self._run(kind, replace(config, queries=queries), allowed)
        except ConfigError as e:  # e.g. so many queries do not fit into memory
            if not self._probes:
                raise
            raise ConfigError(f"at {show_rate(load)} {self._axis.unit}: {e}") from None
        passed = bool(self._probes[-1].passed)
        if is_first and not passed:
            self._check_fastest(finished)
        return passed

    def _run(self, kind: str, config: RunConfig, allowed: int | None = None) -> Finished:
        """One run, recorded. allowed: late queries with which it passes, None where it is no test."""
        number = len(self._probes) + 1
        load = getattr(config, self._axis.field)
        name = f"{number:02}-{kind if load is None or allowed is None else f'{load:g}'}"
        if kind != "full":
            config = replace(config, mode="performance", meter=())
        begun = time.monotonic()
        finished = self._measure(
            replace(config, out=self.folder / "probes" / name), most_late=_constant(allowed)
        )
        probe = self._probe(kind, load, finished, allowed, time.monotonic() - begun)
        self._probes.append(probe)
        if kind == "full" and probe.passed and (not self._best or load > self._best[0]):
            self._best = load, probe, finished
        self._save()
        if not self._quiet:
            say(table.progress(number, probe, self._axis.unit))
        self._raise_if_no_answer(finished)
        return finished

    def _probe(
        self,
        kind: str,
        load: float | None,
        finished: Finished,
        allowed: int | None,
        seconds: float,
    ) -> Probe:
        """load: as asked for, None where the run chose it."""
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
            late=late,
            latency_ns=result["latency_ns"],
            scheduled_per_s=throughput.get("scheduled"),
            completed_per_s=throughput.get("completed"),
            mean_batch=queries.get("mean_batch"),
            busy_share=busy_share(result),
            verdict=result["verdict"],
            reasons=tuple(reason["code"] for reason in result["reasons"]),
            doubts=tuple(doubt["code"] for doubt in result["doubts"]),
            seconds=round(seconds, 3),
            folder=str(finished.folder.relative_to(self.folder)),
        )

    def _raise_if_no_answer(self, finished: Finished) -> None:
        """A run that was stopped, died, or is INVALID for a reason that is not its load."""
        other = other_reason(finished.result)
        if other is None:
            return
        if other.code != INTERRUPTED:
            say(
                f"{finished.folder}: this run says nothing about its load, so the search ends: "
                f"{other.code}: {other.text}"
            )
        raise _Ended(finished.status or RunInvalid.exit_status)

    def _publish(self) -> int:
        """The confirmed run's files become the folder's own; without one it stays `.partial`."""
        if self._best is None:
            return RunInvalid.exit_status
        load, probe, finished = self._best
        self._results.adopt(finished.folder)
        self._probes[self._probes.index(probe)] = replace(probe, folder=".")
        (self.folder / "probes" / "latest").unlink(missing_ok=True)  # it may have been that one
        self._save()
        self.folder = self._results.finish()
        try:
            database.add(self.folder.parent, self.folder.name, finished.result)
        except sqlite3.Error as e:
            say(f"{database.path_in(self.folder.parent)}: the run was not added: {e}")
        file, status = self._options.write_user_conf, 0
        if file is not None and not self._write_user_conf(file, load, probe.queries):
            status = RunInvalid.exit_status
        if not self._config.no_report:
            self._write_page()
        return status

    def _write_page(self) -> None:
        """As an ordinary run has it; made here, where the run lies in its place."""
        from harness.results.pages.report import report

        try:
            report([self.folder], None, standalone=False)
        except HarnessError as e:
            say(f"no report: {e}")

    def _write_user_conf(self, file: Path, load: float, queries: int) -> bool:
        """Whether that went well: where not, it is told."""
        about = (
            f"the highest rate found VALID under {self._slo}, by a run of {queries:,} queries\n"
            f"({self.folder.name}): 600 s may show more late ones"
        )
        about = "\n".join([about, *(f"warning: {text}" for text in self.content()["warnings"])])
        try:
            file.write_text(user_conf.server_text(load, self._slo, about), encoding="utf-8")
        except OSError as e:
            say(f"--write-user-conf {file} cannot be written: {e.strerror}: see {self.folder}")
            return False
        return True

    def _save(self) -> None:
        files.write_json(self.folder / run_folder.PEAK, self.content())

    def content(self) -> dict[str, Any]:
        """Of peak.json. peak: None while it is searched for, and where no load passed. ended_early: why
        the search could not go on from there, None where it came to its end. fastest_ns: the fastest
        answer, where even that took longer than the SLO allows, else None.
        """
        above = self._found.above if self._found else None
        content: dict[str, Any] = {
            "schema_version": SCHEMA_VERSION,
            "started": self._started,
            "scenario": self._config.scenario,
            "backend": self._config.backend,
            "model": self._model_name,
            "slo": str(self._slo),
            "unit": self._axis.unit,
            "finished": self._found is not None,
            "peak": self._best[0] if self._best else None,
            "failed_above": above,
            "failed_above_kind": None if above is None else self._kind_of_failure(above),
            "ended_early": self._ended_early,
            "fastest_ns": self._fastest_ns,
            "probes": [probe.to_json() for probe in self._probes],
        }
        return {**content, "warnings": list(table.warnings(content))}


def _constant(allowed: int | None) -> Callable[[LoadPlan], int] | None:
    return None if allowed is None else lambda _plan: allowed
