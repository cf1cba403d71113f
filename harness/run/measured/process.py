"""Loads, warms up and calibrates a model, and then does nothing but answer LoadGen's queries.

The supervisor spawns one measured process per LoadGen run, with a socket and the journal's
descriptor.

    receives   setup    the resolved run (harness/run/setup.py)
    sends      loading  progress of the dataset, from time to time while it loads samples
    sends      loaded   descriptions of model and dataset, and the sizes that the plan needs
    sends      calibrated
    receives   plan     the load plan; the journal already has its final size
    sends      alive    after some of the batches that the plan requires before the run
    sends      prepared only with --before-run, when everything before the run is done
    receives   go       answer to `prepared`
    sends      ended    resources used, failures     (or `error` at any time before)
"""

import faulthandler
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from typing import Any, NoReturn

from harness.core import registry
from harness.core.child import Channel, end_process, serve
from harness.core.clock import wall_ns
from harness.core.shown.secrets import masked
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunDied, type_and_text
from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import Callbacks
from harness.loadgen.logs import digests
from harness.loadgen.plan import LoadPlan
from harness.models.manifest.schema import TOLERANCE
from harness.models.opened.loading import declared
from harness.run.journal import Journal
from harness.run.labels import check_complete, check_labels
from harness.run.measured.callbacks import SampleCallbacks, issuing, no_worker_dies_alone
from harness.run.measured.client.dispatch import DirectDispatcher
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.dispatch.threads import QueuedDispatcher
from harness.run.measured.load import run_load
from harness.run.measured.own_scheduler import ClosedLoop, Scheduler, scheduler_for
from harness.run.measured.placement.openmp import end_own_threads
from harness.run.measured.preparation import Preparation
from harness.run.measured.ramp import RampAndHold
from harness.run.measured.sessions import sessions_of
from harness.run.measured.systems.choose import system_for
from harness.run.measured.systems.system import OF_KINDS, RunParts
from harness.run.setup import Setup
from harness.types import Dataset, HasAnswerShape, HasOwnOrder, HasTurns


def main() -> None:
    """Entry point of the process. If native code crashes, the output contains the Python stack of every thread."""
    faulthandler.enable()
    serve(_measure)


def _measure(channel: Channel, journal_fd: int) -> None:
    message = channel.receive()
    if message is not None:
        _Measurement(channel, Setup.from_json(message), journal_fd).run()


class _Measurement:
    """One LoadGen run, from the setup message to the `ended` message."""

    def __init__(self, channel: Channel, setup: Setup, journal_fd: int) -> None:
        self._channel = channel
        self._journal_fd = journal_fd
        self._setup = setup
        self._system = system_for(setup)
        self._failures = Failures()

    def run(self) -> None:
        stack = ExitStack()
        try:
            self._measure(stack)
        except BaseException:
            # A second failure must not hide the first failure.
            with suppress(BaseException):
                stack.close()
            raise

    def _measure(self, stack: ExitStack) -> None:
        system, setup = self._system, self._setup
        start = time.monotonic()
        declared(system.config)
        import_s = time.monotonic() - start
        self._channel.send("loaded", **system.open(stack, self._report_progress))
        preparation = Preparation(
            system.config,
            setup.dispatch,
            system.answerers,
            system.dataset,
            setup.dataset,
            held=system.held,
            max_batch=system.max_batch,
            query_samples=setup.samples_per_query,
            may_vary=system.may_vary,
            may_shrink=setup.instances.may_shrink and system.fixed_batch is None,
            threads=setup.instances.threads,
            reopen=system.reopen,
            check_steps=system.check_steps,
            check_numbers=system.check_numbers,
            report_alive=self._report_alive,
            no_schedule=system.no_schedule,
            no_probe=system.no_probe,
        )
        calibration = preparation.run(setup.calibrate_s)
        system.max_batch = preparation.max_batch
        self._check_metric(preparation.row, system.dataset)
        loads = {"import_s": import_s + system.import_s, "load_s": system.load_s}
        calibrated = {
            **calibration,
            "slowest_batch_ns": max(preparation.slowest_ns, system.slowest_ns),
            "cold": {**loads, **calibration["cold"]},
            "backend": system.described_again(),
        }
        self._channel.send("calibrated", **calibrated)
        message = self._channel.receive()
        if message is None:
            return
        plan = LoadPlan.from_json(message["plan"])
        system.connect(plan, preparation)
        self._report_alive()
        preparation.finish(plan)
        end_own_threads()
        self._run_loadgen(plan, preparation, stack)

    def _scheduler(self, plan: LoadPlan, journal: Journal, answer_dtype: str) -> Scheduler | None:
        """Returns the scheduler that replaces LoadGen; None if LoadGen schedules."""
        dataset = self._system.dataset
        if (sessions := sessions_of(plan, journal, dataset, answer_dtype)) is not None:
            self._system.in_order = sessions.in_order
            return sessions
        turns = dataset.turns() if isinstance(dataset, HasTurns) else None
        if plan.ramp is not None:
            return RampAndHold(plan, journal, self._system.begin_hold)
        begin = self._told_start_ns if plan.load_hosts else wall_ns
        return scheduler_for(plan, journal, turns, begin)

    def _run_loadgen(self, plan: LoadPlan, preparation: Preparation, stack: ExitStack) -> None:
        system, journal = self._system, Journal(self._journal_fd)
        scheduler = self._scheduler(plan, journal, str(preparation.row.dtype))
        complete = scheduler.complete if scheduler is not None else None
        parts = RunParts(plan, preparation, journal, self._failures, complete)
        chosen = system.dispatch(parts)
        dispatcher, issuer = chosen.dispatcher, chosen.issuer
        if isinstance(scheduler, ClosedLoop) and isinstance(dispatcher, DirectDispatcher):
            scheduler.issue_on(dispatcher)
        samples = SampleCallbacks(
            system.dataset,
            journal,
            self._die_loading,
            issuer,
            system.separate,
            system.before_load(),
            only_issues=isinstance(dispatcher, QueuedDispatcher),
        )
        ordered = system.dataset if isinstance(system.dataset, HasOwnOrder) else None
        if ordered is not None:
            ordered.labelled = plan.accuracy
        issue = issuing(dispatcher, self._die, ordered.next if ordered is not None else None)
        calls = Callbacks(issue, samples.load, samples.unload)
        no_worker_dies_alone(self._die)
        self._let_supervisor_act(plan)
        run_load(plan, scheduler, calls, self._setup.outdir, system.sut_name())
        used = samples.used()  # `used` is read now, because the bare loops also need memory
        # The digests are taken now, before a plug-in's code runs again.
        written = digests(self._setup.outdir)
        dispatcher.stop()
        # The summary is made now, before the probes answer more batches.
        kind = system.summary(self._failures)
        accuracy = self._setup.model.accuracy
        tolerance = accuracy.tolerance if accuracy else TOLERANCE
        after = preparation.after_run(plan, self._failures.samples, tolerance)
        placed = {
            "dispatcher": chosen.name,
            "issuer": list(issuer),
            "slice": samples.slice,
            "files": written,
            **{key: kind.get(key) for key in OF_KINDS},
            **after,
        }
        self._close(stack, used, preparation.row, placed)

    def _close(
        self,
        stack: ExitStack,
        used: Mapping[str, Any],
        row: AnswerRow,
        more: Mapping[str, Any],
    ) -> None:
        """Closes the backends, and then reports the run. Reports the run even if closing a backend fails."""
        close_error = ""
        try:
            stack.close()
        except BaseException as e:  # noqa: BLE001 - an error of a plug-in becomes a doubt
            sys.stderr.write(masked(traceback.format_exc()))
            close_error = type_and_text(e)
        self._channel.send(
            "ended",
            used=used,
            answer_dtype=str(row.dtype),
            answer_shape=list(row.shape),
            **more,
            failed_samples=self._failures.samples,
            first_failure=self._failures.first,
            close_error=close_error,
        )

    def _check_metric(self, row: AnswerRow, dataset: Dataset) -> None:
        """Raises ConfigError before the run if the metric cannot score these labels or answers."""
        setup = self._setup
        pointless = setup.model.has_random_weights or getattr(dataset, "synthetic", False)
        if setup.metric is None or pointless or not setup.config.runs_accuracy:
            return
        try:
            scorer = registry.load("metric", setup.metric)(str(row.dtype))
            if isinstance(scorer, HasAnswerShape):
                scorer.check_shape(row.shape)
            check_labels(
                setup.metric,
                lambda: map(dataset.label, range(len(dataset))),
                self._system.classes,
                str(row.dtype),
            )
            check_complete(dataset, setup.config.data_dir or setup.dataset)
        except ConfigError:
            raise
        except ValueError as e:
            raise ConfigError(
                f"metric {setup.metric!r} cannot score the model's answers: {e}"
            ) from e
        except (Exception, SystemExit):  # noqa: BLE001 - scoring reports a plug-in's error after the run
            return

    def _told_start_ns(self) -> int:
        """Waits for the common start time of all load hosts, after the samples are loaded.

        Returns the start time on this machine's clock.
        """
        self._channel.send("ready")
        message = self._channel.receive()
        if message is None:
            end_process(RunDied.exit_status)
        return int(message["start_ns"])

    def _let_supervisor_act(self, plan: LoadPlan) -> None:
        """Waits while the supervisor performs the action of --before-run. After the action, only the run itself may
        send requests.
        """
        if self._system.config.before_run is None or plan.role != "performance":
            return
        self._channel.send("prepared")
        if self._channel.receive() is None:
            end_process(RunDied.exit_status)

    def _report_alive(self) -> None:
        self._channel.send("alive")

    def _report_progress(self, done: int, total: int) -> None:
        self._channel.send("loading", done=done, total=total)

    def _die_loading(self, error: BaseException) -> NoReturn:
        if isinstance(error, HarnessError):
            self._die(error, error.exit_status, str(error))
        what = f"dataset {self._setup.dataset!r} raised in load"
        text = f"{what}: {type_and_text(error)}"
        self._die(error, PluginUnavailable.exit_status, text)

    def _die(self, error: BaseException, status: int = 1, text: str = "") -> NoReturn:
        trace = "".join(traceback.format_exception(error))
        self._channel.send("error", status=status, text=text or repr(error), trace=trace)
        end_process(status)
