"""The main job: `python -m harness --scenario server --backend ort`.

preflight -> result folder -> noise floor -> performance process -> accuracy process -> verdict
"""

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from harness import __version__
from harness.core import files, registry
from harness.core.config.parse import Slo
from harness.core.config.run_config import RunConfig, to_plain
from harness.core.console import say
from harness.core.signals import INTERRUPT_EXIT, Stopped, Stopping, stoppable
from harness.errors import HarnessError, RunDied, RunHopeless, RunHung, RunInvalid
from harness.loadgen import user_conf
from harness.loadgen.logs import TRACE
from harness.loadgen.plan import Calibration, Loaded, LoadPlan
from harness.machine import cores, host
from harness.machine.host_log import HOST_PERIOD_S, HostLog, HostReader
from harness.machine.sampler import PowerSampler, Repeated
from harness.models.manifest.defaults import default_dataset, default_metric, slo_of
from harness.models.manifest.manifest import load_model
from harness.models.opened import instances
from harness.results import records, run_folder
from harness.results import resolved as resolve
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.own_log import HARNESS
from harness.results.findings import Findings
from harness.results.outcome import Finished
from harness.results.verdict import score
from harness.run.journal import Journal
from harness.run.supervisor import preflight, ptdaemon_session
from harness.run.supervisor.completions import NewRows, read_completions
from harness.run.supervisor.early_end import LateLimit
from harness.run.supervisor.keeper import RunKeeper
from harness.run.supervisor.load_plan import (
    accuracy_plan,
    check_disk,
    check_memory,
    hang_timeout_s,
    official_plan,
    performance_plan,
)
from harness.run.supervisor.measured_process import START_LIMIT_S, MeasuredProcess
from harness.run.supervisor.metrics.endpoint import Exporter, MetricsEndpoint
from harness.run.supervisor.metrics.live_counts import Tally
from harness.run.supervisor.metrics.machine_series import HostSeries, PowerSeries
from harness.run.supervisor.progress import Progress, announcement, end_loading, show_loading
from harness.run.supervisor.watchdog import Now, Watcher
from harness.types import Reason

NOISE_PROBE_S = 1.0
CALIBRATE_S = 1.0


def execute(config: RunConfig, *, as_json: bool = False, quiet: bool = False) -> int:
    """One run as configured; prints the table (or JSON) and returns the exit status."""
    if ptdaemon_session.asked(config):
        return ptdaemon_session.execute(config, as_json=as_json, quiet=quiet)
    return measure(config, quiet=quiet, as_json=as_json).status


def measure(
    config: RunConfig,
    *,
    quiet: bool = True,
    as_json: bool | None = None,
    most_late: Callable[[LoadPlan], int] | None = None,
    probe_s: float = NOISE_PROBE_S,
) -> Finished:
    """One run as configured. as_json: how its result is printed; None: it is not, and no page is
    made of it.

    most_late: so many queries may be late; with more, the performance run is not worth its end.
    probe_s: how long the machine's noise is looked at first.
    """
    with stoppable() as stopping, MetricsEndpoint(config, quiet=quiet) as endpoint:
        run = _MainJob(
            *(config, stopping, endpoint.exporter),
            quiet=quiet,
            most_late=most_late,
            probe_s=probe_s,
        )
        kept = run.kept
        if not quiet:
            say(endpoint.notice)
        finished = kept.conclude(_status(run, stopping))
        if as_json is not None:
            finished.show(as_json=as_json)
        if finished.status >= INTERRUPT_EXIT:  # signals are ignored by now
            if as_json is not None:
                kept.report(as_json=as_json)
            return finished
        with suppress(Stopped), stopping.allowed():
            if as_json is not None:
                kept.report(as_json=as_json)
            endpoint.linger()
        return finished


def _status(run: "_MainJob", stopping: Stopping) -> int:
    """Measures; 0, or the exit status of what came between. What is there is kept."""
    kept = run.kept
    try:
        with stopping.allowed():
            run.measure()
        status = 0
    except Stopped as e:
        kept.findings.stopped = e.reason
        status = e.exit_status
    except RunHopeless as e:
        status = e.exit_status
    except RunDied as e:
        say(str(e))
        status = e.exit_status
    except HarnessError as e:
        if not kept.has_measured:
            kept.give_up(e)
            raise
        say(str(e))
        kept.findings.stopped = Reason("accuracy-failed", str(e))
        status = RunInvalid.exit_status
    except OSError as e:  # the result folder: gone, full or not ours to write
        kept.not_saved(e)
        status = RunInvalid.exit_status
    except BaseException:
        kept.save()
        raise
    return status


class _MainJob:
    """One run, step by step; `findings` is what result.json is made from."""

    def __init__(
        self,
        config: RunConfig,
        stopping: Stopping,
        exporter: Exporter,
        *,
        quiet: bool,
        most_late: Callable[[LoadPlan], int] | None,
        probe_s: float,
    ) -> None:
        self._quiet = quiet
        self._probe_s = probe_s
        self._most_late = most_late
        self._exporter = exporter
        self._stopping = stopping
        self._model = load_model(config.model)
        self._scenario = registry.load("scenario", config.scenario)
        self._dataset = config.dataset or default_dataset(self._model)
        self._metric = config.metric or default_metric(self._model)
        self._config = config
        self._arrivals = preflight.check(config, self._model, self._dataset, self._metric)
        slo = None if config.mlperf else slo_of(self._scenario, config, self._model)
        self._spec = instances.plan(config, self._scenario, self._model, cores.available())
        folder = run_folder.new_folder(
            config.out, config.scenario, config.backend, self._model.name
        )
        self.findings = Findings(
            config=config,
            model=self._model,
            dataset=self._dataset,
            scenario=self._scenario,
            slo=slo,
            spec=self._spec,
            started=datetime.now(UTC).isoformat(timespec="milliseconds"),
        )
        self.kept = RunKeeper(folder, self.findings, exporter)
        self._host = HostReader()
        self._power = PowerSampler(config.meter) if config.meter else None
        exporter.sources.append(HostSeries(self._host.log))
        if self._power is not None:
            exporter.sources.append(PowerSeries(self._power.log))
        exporter.describe_run(
            {
                "run": folder.final.name,
                "scenario": config.scenario,
                "backend": config.backend,
                "model": self._model.name,
            },
            {
                "version": __version__,
                "mode": config.mode,
                "dataset": self._dataset,
                "device": config.device,
                "scheduler": HARNESS if config.harness_scheduled else "LoadGen",
            },
        )

    def measure(self) -> None:
        """Everything up to the score. Raises RunDied, Stopped and errors before the first query."""
        preflight.obtain_model(self._config, self._model)
        self.kept.save()
        probe = host.noise_floor(self._probe_s)
        self.findings.noise = probe.to_json()
        with Repeated(self._host.look, HOST_PERIOD_S, "host"):
            self._runs()

    def _runs(self) -> None:
        if self._config.runs_performance:
            with self._sampled():
                self._performance()
        if self._config.runs_accuracy:
            known = self.findings.loaded  # from a performance run
            pointless = (
                score.no_score(self._model, known, self._metric) if known is not None else ""
            )
            if pointless:
                self.findings.scoring = score.Scoring(no_score=pointless)
            else:
                self._accuracy_run()

    @contextmanager
    def _sampled(self) -> Iterator[None]:
        """Meters are read from before the spawn until after the exit, however it ends."""
        try:
            with self._power or nullcontext() as power:
                if power is not None:
                    power.idle_baseline(time.sleep)
                yield
        finally:
            if self.kept.has_measured:
                with self._stopping.allowed(False):
                    read = self._power.log if self._power is not None else None
                    so_far = HostLog(self._host.log.rows.copy())  # it is read on
                    self.kept.keep_samples(so_far, read)

    def _performance(self) -> None:
        outdir = self.kept.folder.subfolder("performance", "run_1")
        needs = self._scenario.needs_calibration(self._config)
        with self._spawn("performance", outdir, CALIBRATE_S if needs else 0.0) as process:
            loaded, found = self._loaded(process)
            self.findings.calibration = found
            plan = self._plan(loaded, found, outdir, accuracy=False)
            if not self._quiet:
                say(announcement(plan, found, self._spec))
            self._write_resolved(plan, loaded)
            evidence = self._watch(process, plan, found, outdir)
        self._raise_if_died(evidence)

    def _accuracy_run(self) -> None:
        outdir = self.kept.folder.subfolder("accuracy")
        with self._spawn("accuracy", outdir, 0.0) as process:
            loaded, found = self._loaded(process)
            plan = self._plan(loaded, found, outdir, accuracy=True)
            if not self._config.runs_performance:
                self._write_resolved(plan, loaded)
            evidence = self._watch(process, plan, found, outdir)
        self._raise_if_died(evidence)
        if evidence.ended is not None:
            folder, run = self.kept.folder.path, self.findings.performance
            scoring = score.judge(
                *(folder, self._config, loaded, self._dataset, self._metric, evidence.ended),
                compared=run is not None and run.plan.logged_answers > 0,
            )
            self.findings.scoring = scoring
            if scoring.score is not None:
                (outdir / run_folder.ACCURACY_TEXT).write_text(
                    scoring.score.line + "\n", encoding="utf-8"
                )

    @staticmethod
    def _raise_if_died(evidence: Evidence) -> None:
        if evidence.failure is not None:
            hopeless = evidence.failure.code == "hopeless"
            raise (RunHopeless if hopeless else RunDied)(evidence.failure.text)

    def _spawn(self, name: str, outdir: Path, calibrate_s: float) -> MeasuredProcess:
        setup = {
            "config": to_plain(self._config),
            "accuracy": name == "accuracy",
            "outdir": str(outdir.absolute()),
            "dispatch": self._scenario.dispatch,
            "samples_per_query": self._scenario.samples_per_query(self._config),
            "calibrate_s": calibrate_s,
            "dataset": self._dataset,
            "spec": self._spec._asdict(),
        }
        return MeasuredProcess(setup, self.kept.folder.path / f"{name}.log")

    @property
    def _start_limit_s(self) -> float:
        ns = self._config.hang_timeout_ns
        return START_LIMIT_S if ns is None else ns / 1e9

    def _loaded(self, process: MeasuredProcess) -> tuple[Loaded, Calibration]:
        limit_s = self._start_limit_s
        self._host.pid = process.pid
        if not self.findings.environment:
            self.findings.environment = host.fingerprint()  # while the model loads
        message = process.expect("loaded", limit_s, self._show_loading)
        message.pop("event")
        loaded = Loaded.from_json(message)
        preflight.check_unchanged(self.findings.loaded, loaded)
        self.findings.loaded = loaded
        asked = self._config.performance_count
        if asked is not None and asked > loaded.total_count:
            say(f"the dataset has {loaded.total_count} samples: all are held")
        fixed = loaded.fixed_batch
        if fixed is not None and fixed < self._spec.max_batch:
            say(f"the model file fixes the batch: --max-batch is {fixed}")
            self._spec = self.findings.spec = self._spec._replace(max_batch=fixed)
        preflight.check_digests(self._config, loaded)
        message = process.expect("calibrated", limit_s + CALIBRATE_S, self._show_loading)
        end_loading()
        message.pop("event")
        return loaded, Calibration(**message)

    def _show_loading(self, done: int, total: int) -> None:
        if not self._quiet:
            show_loading(done, total)

    def _plan(
        self, loaded: Loaded, found: Calibration, outdir: Path, *, accuracy: bool
    ) -> LoadPlan:
        """What LoadGen is told; refused when it does not fit into memory."""
        config, slo = self._config, self.findings.slo
        if config.mlperf:
            key = config.mlperf_model or preflight.model_key(self._model)
            plan = official_plan(self._scenario, config, key, outdir, loaded, found, accuracy)
            if plan.percentile is not None and plan.latency_bound_ns is not None:
                self.findings.slo = Slo(plan.percentile, plan.latency_bound_ns)
        elif accuracy:
            plan = accuracy_plan(self._scenario, config, slo, loaded)
        else:
            compared = config.runs_accuracy and not score.no_score(
                self._model, loaded, self._metric
            )
            load = self._arrivals.load(config.queries) if self._arrivals else None
            plan = performance_plan(
                *(self._scenario, config, slo, loaded, found), compared=compared, load=load
            )
            if self._arrivals is not None:
                plan = self._arrivals.put(plan, outdir)
        if config.audit is not None:
            plan = replace(plan, audit_config=user_conf.copy_audit(config.audit, outdir))
        model_bytes = loaded.model_bytes * self._spec.instances
        check_memory(
            plan,
            self._spec.max_batch,
            model_bytes,
            host.available_memory_bytes(),
            counted=config.queries is not None or config.arrivals is not None,
            searched=self._most_late is not None,
        )
        if accuracy:
            free_bytes = shutil.disk_usage(outdir).free
            check_disk(plan.journal_samples, found.answer_bytes, free_bytes)
        return plan

    def _write_resolved(self, plan: LoadPlan, loaded: Loaded) -> None:
        resolved = resolve.config(self._config, plan, loaded, self._spec, self._dataset)
        files.write_yaml(self.kept.folder.path / run_folder.CONFIG, to_plain(resolved))
        machine = self.findings.environment
        environment = resolve.environment(machine, plan, loaded, self._model)
        files.write_json(self.kept.folder.path / run_folder.ENVIRONMENT, environment)

    def _watch(
        self, process: MeasuredProcess, plan: LoadPlan, found: Calibration, outdir: Path
    ) -> Evidence:
        """LoadGen's run to its end, however it ends; what was measured is kept either way."""
        journal = process.start(plan, self._spec.instances)
        load = host.SystemLoad(process.pid)
        rows = NewRows(journal, plan)
        watcher = Watcher(rows)
        self._exporter.begin(Tally(rows.copy()), self.findings.slo)
        limit = LateLimit(rows.copy(), self._most_late)
        ended, failure = None, None
        try:
            with Progress(plan, quiet=self._quiet) as progress:

                def look(now: Now) -> None:
                    progress.show(now)
                    limit.check()

                ended = process.watch(
                    watcher,
                    plan,
                    hang_timeout_s(self._config, found.slowest_batch_ns),
                    self._start_limit_s,
                    look,
                    progress.show_loading,
                )
        except RunHopeless as e:
            process.kill()
            failure = Reason("hopeless", str(e))
        except RunDied as e:
            process.kill()
            failure = Reason("hung" if isinstance(e, RunHung) else "died", str(e))
        except Stopped as e:
            process.kill()
            self.kept.keep(self._evidence(process, journal, plan, outdir, None, e.reason), outdir)
            raise
        with self._stopping.allowed(False):
            if not plan.accuracy:
                self.findings.load = load.since()
            evidence = self._evidence(process, journal, plan, outdir, ended, failure)
            self.kept.keep(evidence, outdir)
        return evidence

    def _evidence(
        self,
        process: MeasuredProcess,
        journal: Journal,
        plan: LoadPlan,
        outdir: Path,
        ended: dict[str, Any] | None,
        failure: Reason | None,
    ) -> Evidence:
        trace = outdir / TRACE
        if trace.exists() and not trace.stat().st_size:
            trace.unlink()
        name = self._scenario.loadgen_name
        if plan.harness_scheduled:
            done = read_completions(journal, plan)
            log = records.log_of(plan, done, failure, name, outdir)
        else:
            log = records.log_of(plan, None, failure, name, outdir)
            done = read_completions(journal, plan, log.get("result_min_latency_ns"))
        return Evidence(
            plan=plan,
            loadgen_scenario=name,
            log=log,
            done=done,
            ended=ended,
            failure=failure,
            clock=process.clock,
        )
