"""The measured process: load, warm up, calibrate, then do nothing but answer LoadGen's queries.

Spawned by the supervisor, one for each LoadGen run, with a socket and the journal's descriptor.

    receives   setup    the configuration and which run this is
    sends      loading  how far the dataset is, now and then while it loads samples
    sends      loaded   what was loaded, the sizes the plan needs
    sends      calibrated
    receives   plan     what LoadGen is told; the journal has its size by now
    sends      ended    resources used, failures     (or `error` at any time before)
"""

import ctypes
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from harness.answers import AnswerRow
from harness.callbacks import SampleCallbacks, issuing, no_worker_dies_alone
from harness.channel import Channel
from harness.config import RunConfig, from_plain
from harness.dispatch import (
    Dispatcher,
    Failures,
    InlineDispatcher,
    Instance,
    QueuedDispatcher,
    SlicedDispatcher,
)
from harness.errors import HarnessError, PluginUnavailable, one_line
from harness.hooks import load_hook
from harness.journal import Journal
from harness.loadgen import Callbacks, responder_for, settings_for, start_test
from harness.loading import (
    batch_in_file,
    described,
    inputs_of,
    model_file,
    open_backends,
    open_dataset,
    plugin,
    samples_held,
)
from harness.manifest import Model, load_model
from harness.modelfiles import size_bytes
from harness.plan import LoadPlan
from harness.postprocess import Postprocess, check, flat, postprocessor
from harness.scheduler import Scheduler, scheduler_for
from harness.sharing import LARGEST_BATCH_NS, SharedDispatcher
from harness.types import Backend, Dataset, TensorSpec
from harness.warmup import (
    Answerer,
    batches_of,
    busy_at,
    calibrate_latency,
    calibrate_rate,
    warm_up,
)

DISPATCHERS: Mapping[str, Callable[..., Dispatcher]] = {
    "inline": InlineDispatcher,
    "sliced": SlicedDispatcher,
    "queued": QueuedDispatcher,
}


def main() -> None:
    """Entry: argv holds the descriptors of the socket and of the journal."""
    _die_with_parent()
    channel = Channel(socket.socket(fileno=int(sys.argv[-2])))
    status = 0
    try:
        message = channel.receive()
        if message is not None:
            _Measurement(channel, message, int(sys.argv[-1])).run()
    except HarnessError as e:
        status = e.exit_status
        channel.send("error", status=status, text=str(e), trace=_cause_trace(e))
    except BaseException as e:  # noqa: BLE001 - told to the supervisor, which shows it
        status = 1
        channel.send("error", status=status, text=repr(e), trace=traceback.format_exc())
    sys.stdout.flush()
    os._exit(status)  # no destructors: LoadGen's and the frameworks' can hang


def _cause_trace(error: HarnessError) -> str:
    return "".join(traceback.format_exception(error.__cause__)) if error.__cause__ else ""


def _die_with_parent() -> None:
    """SIGKILL when the supervisor dies, however it dies (Linux, prctl(2) PR_SET_PDEATHSIG)."""
    try:
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    except (OSError, AttributeError):  # not Linux: the closed socket must do
        return
    if os.getppid() == 1:
        os._exit(1)


class _Measurement:
    """One run, from the setup message to the `ended` message."""

    def __init__(self, channel: Channel, setup: Mapping[str, Any], journal_fd: int) -> None:
        self._channel = channel
        self._journal_fd = journal_fd
        self._config: RunConfig = from_plain(setup["config"])
        self._accuracy: bool = setup["accuracy"]
        self._outdir = Path(setup["outdir"])
        self._dispatch: str = setup["dispatch"]
        self._query_samples: int = setup["samples_per_query"]
        self._calibrate_s: float = setup["calibrate_s"]
        self._dataset: str = setup["dataset"]
        self._spec: Mapping[str, int] = setup["spec"]
        self._max_batch: int = self._spec["max_batch"]
        self._started = time.monotonic()
        self._failures = Failures()

    def run(self) -> None:
        stack = ExitStack()
        try:
            self._measure(stack)
        except BaseException:
            with suppress(BaseException):  # a second failure must not hide the first
                stack.close()
            raise

    def _measure(self, stack: ExitStack) -> None:
        config, model = self._config, load_model(self._config.model)
        path = model_file(config, model)
        backends = open_backends(config, model, path, self._spec, stack)
        inputs = inputs_of(model, backends[0])
        self._fixed = batch_in_file(backends[0], inputs)
        if self._fixed is not None:
            self._max_batch = min(self._max_batch, self._fixed)
        dataset = open_dataset(config, model, self._dataset, inputs, self._tell_progress)
        asked = config.performance_count or model.performance_count
        self._held = samples_held(dataset, self._dataset, asked)
        self._output = output = model.output
        self._hook = load_hook(model, config.hook)
        postprocess = postprocessor(
            output.postprocess if output else (), output.name if output else None, self._hook
        )
        self._send_loaded(model, path, backends[0], dataset, inputs)
        may_vary = any(not isinstance(d, int) for spec in inputs for d in spec.shape[1:])
        row, postprocess = self._warm_up(backends, dataset, postprocess, may_vary=may_vary)
        message = self._channel.receive()
        if message is None:
            return
        plan = LoadPlan.from_json(message["plan"])
        journal = Journal(self._journal_fd)
        scheduler = scheduler_for(plan, journal)
        complete = scheduler.complete if scheduler is not None else None
        instances = [
            Instance(
                backend,
                dataset,
                postprocess,
                responder_for(self._max_batch, row, complete),
                journal.writer(i),
                row,
                self._failures,
            )
            for i, backend in enumerate(backends)
        ]
        make = DISPATCHERS[self._dispatch]
        if self._dispatch == "queued" and self._slowest_ns <= LARGEST_BATCH_NS:
            make = SharedDispatcher if len(instances) > 1 else make
        dispatcher = make(instances, self._max_batch, journal.issuer())
        used = self._start_test(plan, dataset, dispatcher, journal, scheduler)
        dispatcher.stop()
        self._close(stack, used, str(row.dtype))

    def _close(self, stack: ExitStack, used: Mapping[str, Any], answer_dtype: str) -> None:
        """Leave the backends, then say how it went: a failing exit must not lose the run."""
        close_error = ""
        try:
            stack.close()
        except BaseException as e:  # noqa: BLE001 - a plug-in's; becomes a doubt
            traceback.print_exc()
            close_error = f"{type(e).__name__}: {one_line(e)}"
        self._channel.send(
            "ended",
            used=used,
            answer_dtype=answer_dtype,
            failed_samples=self._failures.samples,
            failed_batches=self._failures.batches,
            first_failure=self._failures.first,
            close_error=close_error,
        )

    def _send_loaded(
        self,
        model: Model,
        path: Path | None,
        backend: Backend,
        dataset: Dataset,
        inputs: Sequence[TensorSpec],
    ) -> None:
        self._channel.send(
            "loaded",
            **described(backend, self._config.backend, dataset, self._dataset),
            inputs=inputs,
            total_count=len(dataset),
            performance_count=self._held,
            synthetic=bool(getattr(dataset, "synthetic", False)),
            fixed_batch=self._fixed,
            model_sha256=model.sha256(path) if path is not None else None,
            model_bytes=size_bytes(path) if path is not None else 0,
            load_s=time.monotonic() - self._started,
        )

    def _warm_up(
        self,
        backends: Sequence[Backend],
        dataset: Dataset,
        postprocess: Postprocess,
        *,
        may_vary: bool,
    ) -> tuple[AnswerRow, Postprocess]:
        """Every instance answers batches of the sizes to come, then calibrates.

        may_vary: the inputs leave sizes open, so answers may be as long as the sample: then each is
        told as one row of numbers.
        """
        loaded, batches = batches_of(self._max_batch, self._held, may_vary=may_vary)
        answerers = [Answerer(backend, dataset, postprocess) for backend in backends]
        with plugin(f"dataset {self._dataset!r}, loading samples for the warm-up,"):
            dataset.load(loaded)
        with plugin(f"warm-up of backend {self._config.backend!r} on {self._dataset!r}"):
            self._check_steps(backends[0], dataset, loaded[:1])
            warmed = warm_up(answerers, batches, loaded if may_vary else ())
            self._slowest_ns = warmed.slowest_ns
            found: Mapping[str, Any] = {}
            if self._calibrate_s and self._dispatch == "inline":
                query = [
                    batches[-1][: self._query_samples - start]
                    for start in range(0, self._query_samples, self._max_batch)
                ]
                found = calibrate_latency(answerers[0], query, self._calibrate_s)
            elif self._calibrate_s:
                busy = busy_at(self._config.concurrency, answerers, batches[-1])
                found = calibrate_rate(*busy, self._calibrate_s)
        with plugin(f"dataset {self._dataset!r}: unload"):
            dataset.unload(loaded)
        self._channel.send(
            "calibrated",
            slowest_batch_ns=self._slowest_ns,
            answer_bytes=warmed.answer_bytes,
            **found,
        )
        if warmed.row is None and may_vary:
            return AnswerRow((None,), warmed.first.dtype), flat(postprocess)
        return warmed.first, postprocess

    def _check_steps(self, backend: Backend, dataset: Dataset, first: list[int]) -> None:
        output = self._output
        if output is not None and output.postprocess:
            batch = dataset.batch(first)
            check(output.postprocess, output.name, self._hook, backend.infer(batch), batch)

    def _start_test(
        self,
        plan: LoadPlan,
        dataset: Dataset,
        dispatcher: Dispatcher,
        journal: Journal,
        scheduler: Scheduler | None,
    ) -> Mapping[str, Any]:
        """LoadGen, or our own scheduler, on a thread of its own; the main thread only waits.

        Returns the resources used.
        """
        settings = settings_for(plan) if scheduler is None else None
        samples = SampleCallbacks(dataset, journal, self._die_loading)
        calls = Callbacks(issuing(dispatcher, self._die), samples.load, samples.unload)
        errors: list[BaseException] = []

        def run() -> None:
            try:
                if scheduler is not None:
                    scheduler.run(calls, self._outdir)
                else:
                    start_test(plan, settings, self._outdir, calls)
            except BaseException as e:  # noqa: BLE001 - raised again on the main thread
                errors.append(e)

        no_worker_dies_alone(self._die)
        thread = threading.Thread(target=run, name="loadgen")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return samples.used()

    def _tell_progress(self, done: int, total: int) -> None:
        self._channel.send("loading", done=done, total=total)

    def _die_loading(self, error: BaseException) -> NoReturn:
        if isinstance(error, HarnessError):
            self._die(error, error.exit_status, str(error))
        text = (
            f"dataset {self._dataset!r} raised in load: {type(error).__name__}: {one_line(error)}"
        )
        self._die(error, PluginUnavailable.exit_status, text)

    def _die(self, error: BaseException, status: int = 1, text: str = "") -> NoReturn:
        trace = "".join(traceback.format_exception(error))
        self._channel.send("error", status=status, text=text or repr(error), trace=trace)
        os._exit(status)
