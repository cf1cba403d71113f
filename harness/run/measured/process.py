"""Loads, warms up and calibrates a model, and then does nothing but answer LoadGen's queries.

The supervisor spawns one measured process for each LoadGen run, with a socket and the journal's
descriptor.

    receives   setup    the run as resolved (harness/run/setup.py)
    sends      loading  progress of the dataset, now and then while it loads samples
    sends      loaded   descriptions of model and dataset, and the sizes that the plan needs
    sends      calibrated
    receives   plan     the load plan; the journal has its final size by now
    sends      alive    batches that the plan requires before the run were answered
    sends      ended    resources used, failures     (or `error` at any time before)
"""

import os
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from harness.core import registry
from harness.core.child import Channel, serve
from harness.core.registry import plugin
from harness.errors import ConfigError, HarnessError, PluginUnavailable, one_line
from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import Callbacks, Complete, responder_for
from harness.loadgen.logs import digests
from harness.loadgen.plan import LoadPlan
from harness.models.manifest.files import size_bytes
from harness.models.manifest.hook import load_hook
from harness.models.manifest.schema import TOLERANCE
from harness.models.opened.loading import (
    batch_in_file,
    declared,
    described,
    inputs_of,
    model_file,
    open_backends,
    open_dataset,
    samples_held,
)
from harness.models.opened.remote import check_hosts
from harness.models.opened.separate_instance import SeparateInstance
from harness.models.steps.postprocess import check, postprocessor
from harness.run.journal import Journal
from harness.run.measured.answerer import Answerer
from harness.run.measured.callbacks import SampleCallbacks, issuing, no_worker_dies_alone
from harness.run.measured.client.session import Session
from harness.run.measured.dispatch.choose import NAMES, dispatcher_class, make_dispatcher
from harness.run.measured.dispatch.instance import Failures, Instance
from harness.run.measured.dispatch.shared import SharedDispatcher
from harness.run.measured.dispatch.threads import Dispatcher
from harness.run.measured.load import run_load
from harness.run.measured.own_scheduler import scheduler_for
from harness.run.measured.preparation import Preparation
from harness.run.setup import Setup
from harness.types import Backend, Dataset, HasAnswerShape, TensorSpec
from harness.wire.remote_backend import RemoteBackend


def main() -> None:
    """Entry of the process."""
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
        self._config = setup.config
        self._group = setup.instances
        self._max_batch = setup.instances.max_batch
        self._failures = Failures()
        self._load_s: list[float] = []

    def run(self) -> None:
        stack = ExitStack()
        try:
            self._measure(stack)
        except BaseException:
            with suppress(BaseException):  # a second failure must not hide the first
                stack.close()
            raise

    def _measure(self, stack: ExitStack) -> None:
        config, model, name = self._config, self._setup.model, self._setup.dataset
        start = time.monotonic()
        declared(config)
        self._import_s = time.monotonic() - start
        path = model_file(config, model)
        backends = open_backends(config, model, path, self._group, stack, self._load_s)
        self._separate = [each for each in backends if isinstance(each, SeparateInstance)]
        inputs = inputs_of(model, backends[0])
        if isinstance(backends[0], RemoteBackend):
            check_hosts(config, [backends[0].peer()])  # before the warm-up; the session checks all
        self._fixed = batch_in_file(backends[0], inputs)
        if self._fixed is not None:
            self._max_batch = min(self._max_batch, self._fixed)
        dataset = open_dataset(config, model, name, inputs, self._report_progress)
        self._held = samples_held(
            dataset, name, config.performance_count or model.performance_count
        )
        self._output = output = model.output
        self._hook = load_hook(model, config.hook)
        postprocess = postprocessor(
            output.postprocess if output else (), output.name if output else None, self._hook
        )
        self._send_loaded(path, backends[0], dataset, inputs)
        cpus = self._group.pinned or [()] * len(backends)
        answerers = [
            Answerer(backend, dataset, postprocess, cpus[i]) for i, backend in enumerate(backends)
        ]
        may_vary = any(not isinstance(d, int) for spec in inputs for d in spec.shape[1:])
        self._answer_queries(answerers, dataset, stack, may_vary=may_vary)

    def _answer_queries(
        self,
        answerers: Sequence[Answerer],
        dataset: Dataset,
        stack: ExitStack,
        *,
        may_vary: bool,
    ) -> None:
        """Prepares without LoadGen, waits for the supervisor's plan, and answers LoadGen's queries."""
        preparation = Preparation(
            self._config,
            self._setup.dispatch,
            answerers,
            dataset,
            self._setup.dataset,
            held=self._held,
            max_batch=self._max_batch,
            query_samples=self._setup.samples_per_query,
            may_vary=may_vary,
            check_steps=self._check_steps,
            report_alive=self._report_alive,
            remote=bool(self._config.url),
        )
        calibration = preparation.run(self._setup.calibrate_s)
        self._check_metric(preparation.row, answerers[0].dataset)
        loads = {"import_s": self._import_s, "load_s": self._load_s}
        cold = {**loads, **calibration["cold"]}
        self._channel.send("calibrated", **{**calibration, "cold": cold})
        message = self._channel.receive()
        if message is None:
            return
        plan = LoadPlan.from_json(message["plan"])
        session = self._session(preparation) if self._config.url else None
        preparation.finish(plan)
        self._run_loadgen(plan, preparation, stack, session)

    def _session(self, preparation: Preparation) -> Session:
        first = preparation.answerers[0]
        connections, most = self._group.connections, self._max_batch
        session = Session(self._config, first, connections, most, preparation.slowest_ns)
        with plugin(f"requests to {', '.join(self._config.url)}"):
            session.rehearse(preparation.row, preparation.loaded)
        return session

    def _run_loadgen(
        self,
        plan: LoadPlan,
        preparation: Preparation,
        stack: ExitStack,
        session: Session | None,
    ) -> None:
        journal, row = Journal(self._journal_fd), preparation.row
        dataset = preparation.answerers[0].dataset
        scheduler = scheduler_for(plan, journal)
        complete = scheduler.complete if scheduler is not None else None
        cpus: Sequence[int] = self._group.issuer
        dispatcher: Dispatcher
        if session is not None:
            inline = self._setup.dispatch == "inline"
            dispatcher = session.dispatcher(inline, journal, row, self._failures, complete)
            name = "remote, inline" if inline else "remote, direct"
        else:
            dispatcher, name, cpus = self._local(plan, preparation, journal, complete)
        samples = SampleCallbacks(dataset, journal, self._die_loading, cpus, self._separate)
        calls = Callbacks(issuing(dispatcher, self._die), samples.load, samples.unload)
        no_worker_dies_alone(self._die)
        run_load(plan, scheduler, calls, self._setup.outdir)
        used = samples.used()  # before the bare loops, which need memory too
        written = digests(self._setup.outdir)  # before any plug-in's code runs again
        dispatcher.stop()
        client = None
        if session is not None:
            client = session.told(self._failures)
            session.close()
        declared = self._setup.model.accuracy
        tolerance = declared.tolerance if declared else TOLERANCE
        after = preparation.after_run(plan, self._failures.samples, tolerance)
        placed = {
            "dispatcher": name,
            "issuer": list(cpus),
            "files": written,
            "client": client,
            **after,
        }
        self._close(stack, used, row, placed)

    def _local(
        self,
        plan: LoadPlan,
        preparation: Preparation,
        journal: Journal,
        complete: Complete | None,
    ) -> tuple[Dispatcher, str, Sequence[int]]:
        """The dispatcher of a model that runs here, its name, and the processors of LoadGen's thread."""
        row, answerers = preparation.row, preparation.answerers
        instances = [
            Instance(
                each.backend,
                each.dataset,
                each.postprocess,
                responder_for(self._max_batch, row, complete),
                journal.writer(i),
                row,
                self._failures,
                each.cpus,
            )
            for i, each in enumerate(answerers)
        ]
        dispatch, slowest_ns = self._setup.dispatch, preparation.slowest_ns
        cls = dispatcher_class(dispatch, self._config, len(instances), slowest_ns)
        dispatcher = make_dispatcher(
            cls,
            self._config,
            plan,
            instances,
            self._max_batch,
            journal,
            curve=preparation.curve,
            lengths=preparation.lengths,
        )
        # Under a shared dispatcher LoadGen's thread is the first instance's.
        cpus = instances[0].cpus if cls is SharedDispatcher else self._group.issuer
        return dispatcher, NAMES[cls], cpus

    def _close(
        self,
        stack: ExitStack,
        used: Mapping[str, Any],
        row: AnswerRow,
        more: Mapping[str, Any],
    ) -> None:
        """Closes the backends, then reports the run: a failing close must not lose it."""
        close_error = ""
        try:
            stack.close()
        except BaseException as e:  # noqa: BLE001 - a plug-in's; becomes a doubt
            traceback.print_exc()
            close_error = f"{type(e).__name__}: {one_line(e)}"
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

    def _send_loaded(
        self, path: Path | None, backend: Backend, dataset: Dataset, inputs: Sequence[TensorSpec]
    ) -> None:
        model = self._setup.model
        self._channel.send(
            "loaded",
            **described(backend, self._config.backend, dataset, self._setup.dataset),
            inputs=inputs,
            total_count=len(dataset),
            performance_count=self._held,
            synthetic=bool(getattr(dataset, "synthetic", False)),
            fixed_batch=self._fixed,
            model_sha256=model.sha256(path) if path is not None else None,
            model_bytes=size_bytes(path) if path is not None else 0,
        )

    def _check_steps(self, backend: Backend, dataset: Dataset, first: list[int]) -> None:
        output = self._output
        if output is not None and output.postprocess:
            batch = dataset.batch(first)
            check(output.postprocess, output.name, self._hook, backend.infer(batch), batch, first)

    def _check_metric(self, row: AnswerRow, dataset: Dataset) -> None:
        """A ConfigError, before the run, where the metric cannot score answers of this shape and type."""
        setup = self._setup
        pointless = setup.model.has_random_weights or getattr(dataset, "synthetic", False)
        if setup.metric is None or pointless or not setup.config.runs_accuracy:
            return
        try:
            scorer = registry.load("metric", setup.metric)(str(row.dtype))
            if isinstance(scorer, HasAnswerShape):
                scorer.check_shape(row.shape)
        except ValueError as e:
            raise ConfigError(
                f"metric {setup.metric!r} cannot score what the model answers: {e}"
            ) from e
        except (Exception, SystemExit):  # noqa: BLE001 - a plug-in's; scoring reports it after the run
            return

    def _report_alive(self) -> None:
        self._channel.send("alive")

    def _report_progress(self, done: int, total: int) -> None:
        self._channel.send("loading", done=done, total=total)

    def _die_loading(self, error: BaseException) -> NoReturn:
        if isinstance(error, HarnessError):
            self._die(error, error.exit_status, str(error))
        what = f"dataset {self._setup.dataset!r} raised in load"
        text = f"{what}: {type(error).__name__}: {one_line(error)}"
        self._die(error, PluginUnavailable.exit_status, text)

    def _die(self, error: BaseException, status: int = 1, text: str = "") -> NoReturn:
        trace = "".join(traceback.format_exception(error))
        self._channel.send("error", status=status, text=text or repr(error), trace=trace)
        os._exit(status)
