"""Supervises one LoadGen run: spawns the measured process, plans the load, and collects the evidence."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.core.codes import HOPELESS, Reason
from harness.core.config.address import parse_address
from harness.core.config.parse import Slo
from harness.core.console import say
from harness.core.signals import Stopped, Stopping
from harness.core.units import counted, show_percent
from harness.errors import LoadHostLost, RunDied, RunHopeless, RunHung
from harness.loadgen.logs import TRACE
from harness.loadgen.plan import Calibration, Loaded, LoadPlan
from harness.machine import host
from harness.machine.host_log import HostReader
from harness.machine.running_code import running_code
from harness.models.manifest.judge import judged_by
from harness.models.manifest.model import Model
from harness.models.opened.resolved_run import ResolvedRun
from harness.results import records
from harness.results.evidence.evidence import Evidence
from harness.results.export.genai import about
from harness.results.nodes.joined import with_journals
from harness.results.tokens.facts import models_of, with_facts
from harness.results.tokens.ramp import split
from harness.run import messages
from harness.run.journal import Journal, RowKind
from harness.run.progress import Progress
from harness.run.setup import NODE_ROWS, SESSION_ROWS, Setup
from harness.run.shared_region import release
from harness.run.supervisor import before_run, load_plan, preflight
from harness.run.supervisor.completions import NewRows, with_sessions
from harness.run.supervisor.data_check import notes_of
from harness.run.supervisor.early_end import LateLimit, MemoryLimit
from harness.run.supervisor.keeper import RunKeeper
from harness.run.supervisor.measured_process import START_LIMIT_S, Measured, MeasuredProcess
from harness.run.supervisor.metrics.exporter import Exporter
from harness.run.supervisor.metrics.live_counts import LiveCounts
from harness.run.supervisor.progress import RunProgress, announcement
from harness.run.supervisor.until import Until, shortened
from harness.run.supervisor.watchdog import Now, Watchdog

CALIBRATE_S = 1.0

LOOKS = 500
"""About this many of the watchdog's observations are kept. These observations are spread evenly over the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervisor:
    """The parts that a job's LoadGen runs share."""

    keeper: RunKeeper
    exporter: Exporter
    stopping: Stopping
    host: HostReader
    quiet: bool
    progress: Progress
    notice: str
    """Text to print when the first LoadGen run is ready and can no longer fail to start; "" for nothing."""
    most_late: Callable[[LoadPlan], int] | None
    """Returns how many queries of a plan may be late; None: no run is ended early."""


class LoadGenRun:
    """One LoadGen run in a separate measured process."""

    def __init__(self, supervisor: Supervisor, role: str) -> None:
        """role: performance, accuracy or answers."""
        self._role = role
        self._accuracy = role == "accuracy"
        self._with = supervisor
        self._keeper = supervisor.keeper
        self._findings = supervisor.keeper.findings
        self._progress = RunProgress(supervisor.progress, role)
        self.outdir = self._keeper.folder.subfolder(role)

    def execute(self) -> Evidence:
        """Executes the complete LoadGen run. Saves the measurements even after an error.

        Raises Stopped, any error before the first query, and RunDied or RunHopeless after the first query.
        """
        with self._process() as process:
            loaded = self._load(process)
            calibration, loaded = self._calibrate(process, loaded)
            plan = self._plan(loaded, calibration)
            run = self._findings.resolved
            if self._role == "performance" and not self._with.quiet:
                say(announcement(plan, calibration, run.instances, run.config))
            if self._is_first:
                self._keeper.write_resolved(plan, loaded)
            evidence = self._watch(process, plan, calibration)
        failure = evidence.failure
        if failure is not None:
            raise (RunHopeless if failure.code == HOPELESS else RunDied)(failure.text)
        return evidence

    @property
    def _is_first(self) -> bool:
        runs_performance = self._findings.config.runs_performance
        return self._role == ("performance" if runs_performance else "accuracy")

    @contextmanager
    def _process(self) -> Iterator[Measured]:
        with ExitStack() as stack:
            process = self._spawn(stack, self.outdir, self._role)
            self._with.host.pids = process.pids
            yield process

    def _spawn(self, stack: ExitStack, outdir: Path, log: str) -> MeasuredProcess:
        """Returns a measured process, which `stack` ends.

        outdir: folder of LoadGen's logs. log: name of the file for the output of the process.
        """
        run = self._findings.resolved
        process = MeasuredProcess(
            self._setup(outdir).to_json(),
            self._keeper.folder.path / f"{log}.log",
            while_waiting=self._progress.show_step,
        )
        stack.callback(release, run.config, process.pid)
        return stack.enter_context(process)

    def _setup(self, outdir: Path) -> Setup:
        run = self._findings.resolved
        needed = not self._accuracy and run.scenario.needs_calibration(run.config)
        return Setup.of(run, outdir=outdir, calibrate_s=CALIBRATE_S if needed else 0.0)

    @property
    def _start_limit_s(self) -> float:
        ns = self._findings.config.hang_timeout_ns
        return START_LIMIT_S if ns is None else ns / 1e9

    def _load(self, process: Measured) -> Loaded:
        findings = self._findings
        if not findings.environment:
            # The environment is read while the measured process loads the model, because the supervisor would otherwise
            # only wait.
            findings.environment = {**host.fingerprint(), "code": running_code()}
            if findings.config.device != "cpu":
                gpus = self._with.host.gpus
                findings.environment |= {"gpus": gpus.about(), "gpus_reason": gpus.missing or None}
            if manifest := findings.model.manifest:
                findings.environment |= {"judge": judged_by(manifest)}
        self._progress.begin_step("loading the model")
        message = process.expect(["loaded"], self._start_limit_s, self._progress.show_loading)
        loaded = messages.loaded(message)
        preflight.check_unchanged(findings.loaded, loaded)
        findings.loaded = loaded
        config, group = findings.config, findings.resolved.instances
        held = config.performance_count
        if held is not None and held > loaded.total_count:
            say(f"the dataset has only {counted(loaded.total_count, 'sample')}: all are loaded")
        fixed = loaded.fixed_batch
        if fixed is not None and fixed < group.max_batch:
            say(f"{_why_fixed(findings.model)}: --max-batch is {fixed}")
            group = group._replace(max_batch=fixed)
            findings.resolved = replace(findings.resolved, instances=group)
        preflight.check_digests(config, loaded)
        if self._is_first and not self._with.quiet:
            for note in notes_of(loaded.dataset):
                say(f"dataset: {note}")
        return loaded

    def _calibrate(self, process: Measured, loaded: Loaded) -> tuple[Calibration, Loaded]:
        limit_s = self._start_limit_s + CALIBRATE_S
        self._progress.begin_step("warm-up and calibration")
        message = process.expect(["calibrated"], limit_s, self._progress.show_loading)
        if self._is_first:
            say(self._with.notice)
        calibration = messages.calibration(message)
        if calibration.backend is not None:
            loaded = self._findings.loaded = replace(loaded, backend=calibration.backend)
            calibration = replace(calibration, backend=None)
        if self._role == "performance":
            self._findings.calibration = calibration
        if calibration.max_batch is not None:
            self._keep_batch(calibration.max_batch, calibration.batch_latency_ns)
        if calibration.threads is not None:
            self._keep_threads(calibration.threads, dict(calibration.thread_latency_ns))
        return calibration, loaded

    def _keep_batch(self, chosen: int, curve: Sequence[tuple[int, int]]) -> None:
        """Stores the batch size that the warm-up chose, so that all LoadGen runs of this result use this size.

        Prints the reason if the batch is smaller than --max-batch.
        """
        run = self._findings.resolved
        if chosen < run.instances.max_batch:
            each_ns = {size: ns / size for size, ns in curve}
            largest = run.instances.max_batch
            gain = 1 - each_ns[chosen] / each_ns[largest]
            say(
                f"using batch {chosen}: a sample takes {show_percent(gain)} less time than in a batch of {largest}"
            )
        group = run.instances._replace(max_batch=chosen, may_shrink=False)
        self._findings.resolved = replace(run, instances=group)

    def _keep_threads(self, chosen: int, times_ns: Mapping[int, int]) -> None:
        """Stores the number of threads that the warm-up chose, so that all LoadGen runs of this result use this number.

        Prints the reason if there are fewer threads than planned.
        """
        run = self._findings.resolved
        planned = run.instances.threads
        if chosen < planned and {chosen, planned} <= times_ns.keys():
            gain = 1 - times_ns[chosen] / times_ns[planned]
            say(
                f"using {counted(chosen, 'thread')}: a query takes {show_percent(gain)} less time than on "
                f"{counted(planned, 'thread')}"
            )
        group = run.instances._replace(threads=chosen, may_drop_threads=False)
        self._findings.resolved = replace(run, instances=group)

    def _plan(self, loaded: Loaded, calibration: Calibration) -> LoadPlan:
        """Makes the plan. Raises ConfigError if the run does not fit into memory or on the disk."""
        run = self._findings.resolved
        plan = load_plan.plan_for(run, loaded, calibration, self.outdir, self._role)
        if run.config.mlperf and plan.percentile is not None and plan.latency_bound_ns is not None:
            slos = (Slo(plan.percentile, plan.latency_bound_ns),)
            self._findings.resolved = replace(run, slos=slos)
        load_plan.check_memory(
            plan,
            run.instances.max_batch,
            loaded.model_bytes * run.instances.instances,
            host.available_memory_bytes(),
            counted=run.config.queries is not None or run.arrivals is not None,
            searched=self._with.most_late is not None,
            rows=_row_kind(run),
        )
        if self._accuracy:
            free_bytes = shutil.disk_usage(self.outdir).free
            load_plan.check_disk(plan, calibration.answer_bytes, free_bytes)
        return plan

    def _watch(self, process: Measured, plan: LoadPlan, calibration: Calibration) -> Evidence:
        run = self._findings.resolved
        journal = process.start(
            plan,
            run.instances.workers,
            _row_kind(run),
        )
        if self._role == "performance" and run.config.before_run is not None:
            process.await_prepared(self._start_limit_s, self._progress.show_loading)
            before_run.perform(run.config)
            process.go()
        load = host.SystemLoad(*process.pids)
        watchdog = Watchdog(NewRows(journal, plan))
        memory = MemoryLimit(self._with.host.log, host.memory_bytes())
        ended, failure = None, None
        try:
            ended = self._follow(process, plan, watchdog, calibration, memory)
        except RunHopeless as e:
            process.kill()
            failure = Reason(HOPELESS, str(e))
        except LoadHostLost as e:
            process.kill()
            failure = Reason("load-host-lost", str(e))
        except RunDied as e:
            growth = memory.growth() if process.was_killed else ""
            process.kill()
            failure = Reason("hung" if isinstance(e, RunHung) else "died", f"{e}{growth}")
        except Stopped as e:
            process.kill()
            evidence = self._evidence(process, plan, None, e.reason, watchdog)
            self._keeper.keep(evidence, self.outdir)
            raise
        with self._with.stopping.allowed(False):
            if self._role == "performance":
                self._findings.load = load.since()
            evidence = self._evidence(process, plan, ended, failure, watchdog)
            self._keeper.keep(evidence, self.outdir)
        return evidence

    def _follow(
        self,
        process: Measured,
        plan: LoadPlan,
        watchdog: Watchdog,
        calibration: Calibration,
        memory: MemoryLimit,
    ) -> dict[str, Any]:
        """Returns the `ended` message. Raises RunDied, RunHopeless and Stopped."""
        rows = watchdog.rows
        nodes = [parse_address(url).authority for url in self._findings.config.node_urls]
        run = self._findings.resolved
        counts = LiveCounts(rows.copy(), nodes, has_wide=bool(run.instances.wide))
        loaded = self._findings.loaded
        if loaded is not None:
            counts.about = about(loaded.backend, loaded.dataset, run.model.name, run.config.url)
        self._with.exporter.begin(counts, run.slos)
        limit = LateLimit(rows.copy(), self._with.most_late)
        until = self._until(plan, rows)
        self._progress.begin_run(plan)

        def look(now: Now) -> None:
            self._progress.show(now)
            limit.check()
            memory.check(now)
            if until is not None:
                until.check(now)

        try:
            return process.watch(
                watchdog,
                load_plan.hang_timeout_s(self._findings.config, calibration.slowest_batch_ns),
                self._start_limit_s,
                look,
                self._progress.show_loading,
            )
        finally:
            self._with.progress.clear()

    @staticmethod
    def _until(plan: LoadPlan, rows: NewRows) -> Until | None:
        """Returns the check of --until; None without this option. Runs with several journals refuse the option."""
        journal = rows.journal
        if plan.until is None or not isinstance(journal, Journal):
            return None
        return Until(journal, plan)

    def _evidence(
        self,
        process: Measured,
        plan: LoadPlan,
        ended: dict[str, Any] | None,
        failure: Reason | None,
        watchdog: Watchdog,
    ) -> Evidence:
        trace = self.outdir / TRACE
        if trace.exists() and not trace.stat().st_size:
            trace.unlink()
        name = self._findings.scenario.loadgen_name
        journal = watchdog.rows.journal
        if plan.until is not None and isinstance(journal, Journal):
            plan = shortened(plan, journal)
        ramp = None
        if plan.harness_scheduled:
            done = process.completions(plan)
            if plan.ramp is not None:
                ramp = records.read_ramp(self.outdir)
                done = split(done, ramp)
            if plan.sessions:
                done = with_sessions(done, self.outdir / SESSION_ROWS)
            log = records.log_of(plan, done, failure, name, self.outdir)
        else:
            log = records.log_of(plan, None, failure, name, self.outdir)
            done = process.completions(plan, log.get("result_min_latency_ns"))
        done = with_journals(done, self.outdir / NODE_ROWS)
        facts = records.read_facts(self.outdir)
        done = replace(done, columns=with_facts(done.columns, facts))
        return Evidence(
            plan=plan,
            loadgen_scenario=name,
            log=log,
            done=done,
            ended=ended,
            failure=failure,
            clock=process.clock,
            ramp=ramp,
            models=models_of(facts),
            probes=records.read_probes(self.outdir) if plan.probe_rate else None,
            looks=watchdog.looks[:: 1 + len(watchdog.looks) // LOOKS],
            changed_files=records.changed_files(ended, self.outdir),
        )


def _why_fixed(model: Model) -> str:
    """Returns the reason why the batch size is fixed."""
    rows = model.layout.rows_follow_data if model.layout is not None else ()
    if rows:
        return f"the number of rows of output {rows[0]!r} depends on the data, so each sample is answered alone"
    return "the model file fixes the batch"


def _row_kind(run: ResolvedRun) -> RowKind:
    """Returns the kind of rows that the run writes into the journal."""
    if run.config.servers:
        return RowKind.REPLY
    if run.config.models is not None:
        return RowKind.CACHED
    return RowKind.TOKENS if run.generates else RowKind.BATCH
