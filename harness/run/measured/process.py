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
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from harness.core import registry
from harness.core.child import Channel, serve
from harness.core.clock import wall_ns
from harness.core.registry import plugin
from harness.errors import ConfigError, HarnessError, PluginUnavailable, RunDied, type_and_text
from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import Callbacks, Complete, responder_for
from harness.loadgen.logs import digests
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import scenario_named
from harness.models.cache.model_set import ModelSet
from harness.models.generation.backend import GeneratingBackend
from harness.models.manifest.files import size_bytes
from harness.models.manifest.hook import load_hook
from harness.models.manifest.schema import TOLERANCE
from harness.models.opened.loading import (
    batch_in_file,
    check_tables,
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
from harness.run.measured.answerer import Answerer, batch_of
from harness.run.measured.callbacks import SampleCallbacks, issuing, no_worker_dies_alone
from harness.run.measured.client.session import Session
from harness.run.measured.dispatch.choose import NAMES, dispatcher_class, make_dispatcher
from harness.run.measured.dispatch.instance import Failures, Instance
from harness.run.measured.dispatch.shared import SharedDispatcher
from harness.run.measured.dispatch.threads import Dispatcher, QueuedDispatcher
from harness.run.measured.generation.dispatch import generating_dispatcher
from harness.run.measured.generation.instance import Generated, GeneratingInstance
from harness.run.measured.load import run_load
from harness.run.measured.models.instance import OF_THE_MODELS, SetInstance, told
from harness.run.measured.models.opening import Opened, open_set
from harness.run.measured.nodes.opened import OpenNodes, as_client, open_nodes
from harness.run.measured.nodes.session import NodeSession
from harness.run.measured.own_scheduler import scheduler_for
from harness.run.measured.preparation import Preparation
from harness.run.setup import NODE_ROWS, Setup
from harness.types import Backend, Dataset, HasAnswerShape, HasTurns, TensorSpec
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
        self._on_nodes = bool(setup.config.node_urls)
        self._config = as_client(setup.config) if self._on_nodes else setup.config
        self._nodes: OpenNodes | None = None
        self._group = setup.instances
        self._max_batch = setup.instances.max_batch
        self._failures = Failures()
        self._load_s: list[float] = []
        itl = (slo.bound_ns for slo in self._config.slo if slo.of == "itl")
        self._generated = Generated(next(itl, None))
        self._separate: list[SeparateInstance] = []
        self._set: Opened | None = None
        """A set of models; None for a single model."""

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
        if self._on_nodes:
            self._nodes = open_nodes(self._setup.config, stack)
            self._max_batch = min(self._max_batch, self._nodes.max_batch)
        self._import_s = time.monotonic() - start
        if isinstance(model, ModelSet):
            self._measure_set(model, stack)
            return
        path = model_file(config, model) if self._nodes is None else None
        if self._nodes is not None:
            backends = self._nodes.backends(model, stack)
        else:
            backends = open_backends(config, model, path, self._group, stack, self._load_s)
        self._separate = [each for each in backends if isinstance(each, SeparateInstance)]
        inputs = (
            self._nodes.inputs if self._nodes else inputs_of(model, backends[0], qdl=config.qdl)
        )
        if isinstance(backends[0], RemoteBackend):
            check_hosts(config, [backends[0].peer()])  # before the warm-up; the session checks all
        self._fixed = batch_in_file(backends[0], inputs)
        if self._fixed is not None:
            self._max_batch = min(self._max_batch, self._fixed)
        dataset = open_dataset(config, model, name, inputs, self._report_progress)
        if self._nodes is not None:
            dataset = self._nodes.data(dataset)
        self._held = samples_held(
            dataset, name, config.performance_count or model.performance_count
        )
        # A QDL takes the reply as the answer, whatever the server calls it; so does who asks nodes by indices.
        self._answered = config.qdl or (self._on_nodes and not self._setup.config.inputs_on_wire)
        self._output = output = None if self._answered else model.output
        self._hook = None if self._answered else load_hook(model, config.hook)
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

    def _measure_set(self, models: ModelSet, stack: ExitStack) -> None:
        group = self._group
        self._set = opened = open_set(self._config, models, group, stack, self._report_progress)
        self._load_s, self._fixed, self._held = opened.load_s, None, len(opened.dataset)
        self._output = self._hook = None
        backend: Any = opened.backend  # its batches say which model they are for
        dataset: Any = opened.dataset
        self._send_loaded(None, backend, dataset, ())
        each = Answerer(backend, dataset, OF_THE_MODELS)
        self._answer_queries([each] * group.instances, dataset, stack, may_vary=False)

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
            check_numbers=self._check_numbers,
            report_alive=self._report_alive,
            remote=bool(self._config.url),
            generates=self._generates,
            cached=self._set is not None,
            by_indices=self._nodes is not None and self._answered,
        )
        calibration = preparation.run(self._setup.calibrate_s)
        self._check_metric(preparation.row, answerers[0].dataset)
        loads = {"import_s": self._import_s, "load_s": self._load_s}
        cold = {**loads, **calibration["cold"]}
        if self._set is not None:
            slowest_ns = max(preparation.slowest_ns, self._set.slowest_ns)
            calibration = {**calibration, "slowest_batch_ns": slowest_ns}
        self._channel.send("calibrated", **{**calibration, "cold": cold})
        message = self._channel.receive()
        if message is None:
            return
        plan = LoadPlan.from_json(message["plan"])
        session = self._session(preparation) if self._config.url else None
        preparation.finish(plan)
        self._run_loadgen(plan, preparation, stack, session)

    def _session(self, preparation: Preparation) -> Session:
        first, most, slowest_ns = (
            preparation.answerers[0],
            self._max_batch,
            preparation.slowest_ns,
        )
        session = (
            NodeSession(self._config, self._nodes, first, most, slowest_ns)
            if self._nodes is not None
            else Session(self._config, first, self._group.connections, most, slowest_ns)
        )
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
        turns = dataset.turns() if isinstance(dataset, HasTurns) else None
        begin = self._told_start_ns if plan.load_hosts else wall_ns
        scheduler = scheduler_for(plan, journal, turns, begin)
        complete = scheduler.complete if scheduler is not None else None
        cpus: Sequence[int] = self._group.issuer
        dispatcher: Dispatcher
        if session is not None:
            inline = self._setup.dispatch == "inline"
            dispatcher = session.dispatcher(plan, inline, journal, row, self._failures, complete)
            name = "remote, inline" if inline else "remote, direct"
        elif self._set is not None:
            dispatcher, name = self._of_set(self._set, preparation, journal, complete)
        elif self._generates:
            dispatcher, name = self._generating(plan, preparation, journal, complete)
        else:
            dispatcher, name, cpus = self._local(plan, preparation, journal, complete)
        prepare: Callable[[Sequence[int]], None] | None = None
        if session is not None:
            prepare = session.prepare
        elif self._set is not None:
            prepare = self._empty_cache
        samples = SampleCallbacks(
            dataset, journal, self._die_loading, cpus, self._separate, prepare
        )
        calls = Callbacks(issuing(dispatcher, self._die), samples.load, samples.unload)
        no_worker_dies_alone(self._die)
        nodes = session.nodes if session is not None else None
        sut_name = nodes.sut_name if nodes is not None else None
        run_load(plan, scheduler, calls, self._setup.outdir, sut_name)
        used = samples.used()  # before the bare loops, which need memory too
        written = digests(self._setup.outdir)  # before any plug-in's code runs again
        dispatcher.stop()
        cached = told(self._set.models) if self._set is not None else None  # before more batches
        client = None
        if session is not None:
            if isinstance(session, NodeSession):
                rows = session.rows()
                np.savez(self._setup.outdir / NODE_ROWS, **rows)  # type: ignore[arg-type] # numpy's stubs
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
            "tokens": self._generated.told() if self._generates else None,
            "models": cached,
            **after,
        }
        self._close(stack, used, row, placed)

    @property
    def _set_bytes(self) -> int:
        """Of a set of models, what an instance's share of the cache may hold."""
        return -(-self._set.resident_bytes // self._group.instances) if self._set else 0

    @property
    def _generates(self) -> bool:
        return not self._config.url and self._setup.model.generation is not None

    def _generating(
        self,
        plan: LoadPlan,
        preparation: Preparation,
        journal: Journal,
        complete: Complete | None,
    ) -> tuple[Dispatcher, str]:
        """The dispatcher of a language model that runs here, and its name."""
        row, told = preparation.row, plan.token_latencies
        instances = []
        for i, each in enumerate(preparation.answerers):
            assert isinstance(each.backend, GeneratingBackend)
            responder = responder_for(self._max_batch, row, complete)
            instances.append(
                GeneratingInstance(
                    each.backend,
                    each.dataset,
                    each.postprocess,
                    responder,
                    journal.tokens_writer(i),
                    row,
                    self._failures,
                    self._generated,
                    each.cpus,
                    token_latencies=told,
                    first_tokens=told and not scenario_named(plan.scenario).all_at_once,
                )
            )
        return generating_dispatcher(self._setup.dispatch, instances, journal.issuer())

    def _of_set(
        self, opened: Opened, preparation: Preparation, journal: Journal, complete: Complete | None
    ) -> tuple[Dispatcher, str]:
        """The dispatcher of a set of models, and its name: LoadGen's thread never loads a model."""
        instances = [
            SetInstance(
                opened.models,
                opened.dataset,
                responder_for(1, preparation.row, complete),
                journal.cached_writer(i),
                self._failures,
            )
            for i in range(self._group.instances)
        ]
        return QueuedDispatcher(instances, 1, journal.issuer()), NAMES[QueuedDispatcher]

    def _empty_cache(self, _indices: Sequence[int]) -> None:
        assert self._set is not None
        self._set.models.reset()

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

    def _send_loaded(
        self, path: Path | None, backend: Backend, dataset: Dataset, inputs: Sequence[TensorSpec]
    ) -> None:
        model = self._setup.model
        about = described(backend, self._config.backend, dataset, self._setup.dataset)
        sha256 = model.sha256(path) if path is not None else None
        size = size_bytes(path) if path is not None else self._set_bytes
        if self._nodes is not None:
            first = self._nodes.first
            about["backend"] = {**first.backend_description, "nodes": len(self._nodes.facts)}
            sha256, size = first.model_sha256, first.model_bytes
        self._channel.send(
            "loaded",
            **about,
            inputs=inputs,
            total_count=len(dataset),
            performance_count=self._held,
            synthetic=bool(getattr(dataset, "synthetic", False)),
            fixed_batch=self._fixed,
            model_sha256=sha256,
            model_bytes=size,
        )

    def _check_steps(self, backend: Backend, dataset: Dataset, first: list[int]) -> None:
        output = self._output
        if output is not None and output.postprocess:
            batch = batch_of(dataset, first)
            check(output.postprocess, output.name, self._hook, backend.infer(batch), batch, first)

    def _check_numbers(self, dataset: Dataset, loaded: list[int]) -> None:
        check_tables(self._config, self._setup.model, batch_of(dataset, loaded))

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

    def _told_start_ns(self) -> int:
        """The wall clock at which all load hosts start, by this machine's clock. The samples are loaded."""
        self._channel.send("ready")
        message = self._channel.receive()
        if message is None:
            os._exit(RunDied.exit_status)
        return int(message["start_ns"])

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
        os._exit(status)
