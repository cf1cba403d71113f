"""Executes one run: `python -m harness --scenario server --backend ort`.

preflight -> result folder -> noise floor -> performance process -> accuracy process -> verdict
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Protocol

from harness import __version__
from harness.core import registry
from harness.core.clock import wall_ns
from harness.core.codes import Reason
from harness.core.config.run_config import RunConfig
from harness.core.console import say
from harness.core.signals import INTERRUPT_EXIT, Stopped, Stopping, stoppable
from harness.core.units import NS_PER_S
from harness.errors import HarnessError, RunDied, RunHopeless, RunInvalid
from harness.loadgen.plan import LoadPlan
from harness.machine import host
from harness.machine.host_log import HOST_PERIOD_S, HostLog, HostReader
from harness.machine.power.meters import ptdaemon
from harness.machine.sampler import PowerSampler, Repeated
from harness.models.opened.remote import metrics_pages
from harness.models.opened.resolved_run import ResolvedRun
from harness.results import run_folder
from harness.results.evidence.own_log import HARNESS
from harness.results.findings import Findings
from harness.results.nodes import section as nodes
from harness.results.outcome import Finished
from harness.results.records import Samples
from harness.results.verdict import score
from harness.run.progress import Progress
from harness.run.supervisor import preflight, ptdaemon_session
from harness.run.supervisor.keeper import RunKeeper
from harness.run.supervisor.loadgen_run import LoadGenRun, Supervisor
from harness.run.supervisor.metrics.endpoint import MetricsEndpoint
from harness.run.supervisor.metrics.exporter import Exporter
from harness.run.supervisor.metrics.machine_series import HostSeries, PowerSeries
from harness.wire.server_metrics import PERIOD_S, ServerMetrics
from harness.wire.server_series import Series

NOISE_PROBE_S = 1.0


class Executor(Protocol):
    """Executes a run, prints its table (or JSON) and returns the exit status."""

    def __call__(self, config: RunConfig, *, as_json: bool, quiet: bool, details: bool) -> int: ...


EXECUTORS: Mapping[str, Executor] = {ptdaemon.NAME: ptdaemon_session.execute}
"""Maps a meter to the function that executes runs with this meter. `measure` executes all other runs."""


def execute(
    config: RunConfig,
    *,
    as_json: bool = False,
    quiet: bool = False,
    details: bool = False,
    performance_run: type[LoadGenRun] = LoadGenRun,
) -> int:
    """Makes one run as configured, prints its table (or JSON) and returns the exit status.

    details: whether every number is printed. performance_run: see `measure`.
    """
    for meter, _ in config.meter:
        if meter in EXECUTORS:
            return EXECUTORS[meter](config, as_json=as_json, quiet=quiet, details=details)
    finished = measure(
        config, quiet=quiet, as_json=as_json, details=details, performance_run=performance_run
    )
    return finished.status


def measure(
    config: RunConfig,
    *,
    quiet: bool = True,
    as_json: bool | None = None,
    details: bool = False,
    most_late: Callable[[LoadPlan], int] | None = None,
    probe_s: float = NOISE_PROBE_S,
    progress: Progress | None = None,
    performance_run: type[LoadGenRun] = LoadGenRun,
) -> Finished:
    """Makes one run as configured.

    as_json: whether the result is printed as JSON; None: nothing is printed, and no page is made.
    details: whether the printed table has every number.
    most_late: returns how many queries may be late before the performance run is ended early; None: the run is never
    ended early.
    probe_s: time for measuring the machine's noise before the run.
    progress: progress display of a group of runs, shown even with `quiet`; None: the run gets a separate display.
    performance_run: class of the performance run; runs with load hosts need a subclass that handles them.
    """
    with (
        stoppable() as stopping,
        MetricsEndpoint(config, quiet=quiet) as endpoint,
        progress or Progress(quiet=quiet) as shown,
    ):
        run = preflight.resolve(config)
        keeper = _begin(run, endpoint.exporter)
        endpoint.note_in(keeper.folder.path)
        supervisor = Supervisor(
            keeper=keeper,
            exporter=endpoint.exporter,
            stopping=stopping,
            host=HostReader(device="cpu" if config.nodes else config.device),
            quiet=quiet,
            progress=shown,
            notice="" if quiet else endpoint.moved,
            most_late=most_late,
        )
        power = PowerSampler(run.config.meter) if config.meter else None
        job = _Job(supervisor, power, probe_s, performance_run)
        if not quiet:
            say(endpoint.notice)
        status = _status(job, keeper, stopping)
        shown.show("computing the result")
        finished = keeper.conclude(status)
        if as_json is not None:
            finished.show(as_json=as_json, details=details)
        if finished.status >= INTERRUPT_EXIT:  # a signal stopped the run; later signals are ignored
            if as_json is not None:
                keeper.report(as_json=as_json)
            return finished
        with suppress(Stopped), stopping.allowed():
            if as_json is not None:
                shown.show("drawing the page")
                keeper.report(as_json=as_json)
            endpoint.linger()
        return finished


def _begin(run: ResolvedRun, exporter: Exporter) -> RunKeeper:
    """Makes the result folder and announces the run to Prometheus."""
    config, model = run.config, run.model.name
    folder = run_folder.new_folder(config.out, config.scenario, config.backend, model)
    exporter.describe_run(
        {
            "run": folder.final.name,
            "scenario": config.scenario,
            "backend": registry.short_name(config.backend),
            "model": model,
        },
        {
            "version": __version__,
            "mode": config.mode,
            "dataset": registry.short_name(run.dataset),
            "device": config.device,
            "scheduler": HARNESS if config.harness_scheduled else "LoadGen",
        },
    )
    started = datetime.fromtimestamp(wall_ns() / NS_PER_S, UTC).isoformat(timespec="milliseconds")
    return RunKeeper(folder, Findings(resolved=run, started=started), exporter)


def _status(job: "_Job", keeper: RunKeeper, stopping: Stopping) -> int:
    """Measures, and saves the measurements even after an error. Returns the exit status so far."""
    try:
        with stopping.allowed():
            job.measure()
        status = 0
    except Stopped as e:
        keeper.findings.stopped = e.reason
        status = e.exit_status
    except RunHopeless as e:
        status = e.exit_status
    except RunDied as e:
        say(str(e))
        status = e.exit_status
    except HarnessError as e:
        if not keeper.has_measured:
            keeper.give_up(e)
            raise
        say(str(e))
        keeper.findings.stopped = Reason("accuracy-failed", str(e))
        status = RunInvalid.exit_status
    except OSError as e:  # the result folder is gone, full or not writable
        keeper.not_saved(e)
        status = RunInvalid.exit_status
    except BaseException:
        keeper.try_save()
        raise
    return status


class _Job:
    """The steps of one run, from the noise floor to the score."""

    def __init__(
        self,
        supervisor: Supervisor,
        power: PowerSampler | None,
        probe_s: float,
        performance_run: type[LoadGenRun] = LoadGenRun,
    ) -> None:
        self._supervisor = supervisor
        self._keeper = supervisor.keeper
        self._findings = supervisor.keeper.findings
        self._host = supervisor.host
        self._progress = supervisor.progress
        self._power = power
        self._probe_s = probe_s
        config = supervisor.keeper.findings.config
        wanted = [*map(Series.parse, config.server_metric)]
        self._server = ServerMetrics(metrics_pages(config), wanted) if config.url else None
        assert (
            supervisor.keeper.findings.config.load_hosts is None
            or performance_run is not LoadGenRun
        )
        self._performance_run = performance_run
        supervisor.exporter.sources.append(HostSeries(self._host.log))
        if power is not None:
            supervisor.exporter.sources.append(PowerSeries(power.log))

    def measure(self) -> None:
        """Makes the LoadGen runs and scores the answers.

        Raises RunDied, RunHopeless and Stopped, and any error before the first query.
        """
        run = self._findings.resolved
        preflight.obtain_model(run.config, run.model)
        preflight.check_always_resident(run.config, run.model)
        self._keeper.save()
        self._progress.show("measuring the machine's noise")
        self._findings.noise = host.noise_floor(self._probe_s).to_json()
        with Repeated(self._host.look, HOST_PERIOD_S, "host"):
            if run.config.runs_performance:
                with self._sampled():
                    self._performance_run(self._supervisor, "performance").execute()
            if run.config.runs_accuracy:
                self._score()

    @contextmanager
    def _sampled(self) -> Iterator[None]:
        """Reads the meters while the measured process runs, and just before and after. Keeps the readings even after an
        error.
        """
        try:
            with self._power or nullcontext() as power, self._asked_servers():
                if power is not None:
                    power.idle_baseline(time.sleep)
                yield
        finally:
            if self._keeper.has_measured:
                with self._supervisor.stopping.allowed(False):
                    self._keeper.keep_samples(self._samples())

    @contextmanager
    def _asked_servers(self) -> Iterator[None]:
        """Reads the servers' metrics in this process, so that the measured process is not disturbed."""
        if self._server is None:
            yield
            return
        with closing(self._server), Repeated(self._server.look, PERIOD_S, "server metrics"):
            yield

    def _samples(self) -> Samples:
        """Returns copies of the samples, because threads still add rows."""
        if self._server is not None:
            self._findings.no_server_metrics = self._server.absent
        told = self._server.rows.copy() if self._server is not None else []
        return Samples(
            HostLog(self._host.log.rows.copy()),
            self._power.log if self._power is not None else None,
            HostLog([*told]) if told else None,
        )

    def _score(self) -> None:
        """Makes the accuracy run and scores it. If a score is impossible, only records the reason."""
        findings, run = self._findings, self._findings.resolved
        # `loaded` is None unless the performance run has loaded the model and the data.
        loaded = findings.loaded
        pointless = nodes.no_score(findings.performance)
        if loaded is not None:
            pointless = pointless or score.no_score(run.model, loaded, run.metric)
        if pointless:
            findings.scoring = score.Scoring(no_score=pointless)
            return
        accuracy = LoadGenRun(self._supervisor, "accuracy")
        evidence = accuracy.execute()
        if evidence.ended is None or findings.loaded is None:
            return
        self._progress.show("scoring the answers")
        has_score = not score.no_score(run.model, findings.loaded, run.metric)
        if run.config.mlperf and has_score:
            LoadGenRun(self._supervisor, "answers").execute()
        findings.scoring = score.judge(
            self._keeper.folder.path,
            findings.resolved,
            findings.loaded,
            evidence.ended,
            findings.compared_run,
        )
        if findings.scoring.score is not None:
            score.write(accuracy.outdir / run_folder.ACCURACY_TEXT, findings.scoring.score)
