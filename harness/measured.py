"""The measured process: load, warm up, calibrate, then do nothing but answer LoadGen's queries.

Spawned by the supervisor, one for each LoadGen run, with a socket and the journal's descriptor.

    receives   setup    the configuration and which run this is
    sends      loaded   what was loaded, the sizes the plan needs
    sends      calibrated
    receives   plan     what LoadGen is told; the journal has its size by now
    sends      ended    resources used, failures     (or `error` at any time before)
"""

import ctypes
import gc
import json
import os
import resource
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NoReturn

from harness import registry
from harness.channel import Channel
from harness.clock import wall_offset_ns
from harness.config import RunConfig, from_plain
from harness.dispatch import (
    Dispatcher,
    Failures,
    InlineDispatcher,
    Instance,
    QueuedDispatcher,
    SlicedDispatcher,
)
from harness.errors import ConfigError, HarnessError, PluginUnavailable
from harness.journal import Journal
from harness.loadgen import Callbacks, Responder, settings_for, start_test
from harness.manifest import Model, load_model, sha256_of
from harness.plan import LoadPlan
from harness.postprocess import Postprocess, postprocessor
from harness.sharing import LARGEST_BATCH_NS, SharedDispatcher
from harness.types import (
    Array,
    Backend,
    BackendSetup,
    Dataset,
    DatasetSetup,
    HasSignature,
    TensorSpec,
)
from harness.warmup import Answerer, calibrate_latency, calibrate_rate, warm_up

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
            _Run(channel, message, int(sys.argv[-1])).run()
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


@contextmanager
def _plugin(what: str) -> Iterator[None]:
    """An exception out of a plug-in before the run is exit status 3, with its traceback kept."""
    try:
        yield
    except HarnessError:
        raise
    except MemoryError as e:
        raise PluginUnavailable(f"{what} ran out of memory") from e
    except (Exception, SystemExit) as e:
        raise PluginUnavailable(f"{what} raised {type(e).__name__}: {e}") from e


def _plain(described: Mapping[str, object]) -> dict[str, Any]:
    """What a plug-in says of itself, as JSON can hold it."""
    plain: dict[str, Any] = json.loads(json.dumps(dict(described), default=str))
    return plain


class _Run:
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
        self._instances: int = setup["instances"]
        self._threads: int = setup["threads"]
        self._max_batch: int = setup["max_batch"]
        self._failures = Failures()

    def run(self) -> None:
        with ExitStack() as stack:
            start = time.monotonic()
            model = load_model(self._config.model)
            backends = self._open_backends(model, stack)
            dataset = self._open_dataset(model, backends[0])
            output = model.output
            postprocess = postprocessor(
                output.postprocess if output else "none", output.name if output else None
            )
            self._send_loaded(backends[0], dataset, time.monotonic() - start)
            row = self._warm_up(backends, dataset, postprocess)
            message = self._channel.receive()
            if message is None:
                return
            plan = LoadPlan.from_json(message["plan"])
            journal = Journal(self._journal_fd)
            instances = [
                Instance(
                    backend,
                    dataset,
                    postprocess,
                    Responder(self._max_batch, row),
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
            used = self._start_test(plan, dataset, dispatcher)
            dispatcher.stop()
            self._close(stack, used, str(row.dtype))

    def _close(self, stack: ExitStack, used: Mapping[str, Any], answer_dtype: str) -> None:
        """Leave the backends, then say how it went: a failing exit must not lose the run."""
        close_error = ""
        try:
            stack.close()
        except Exception as e:  # noqa: BLE001 - a plug-in's; becomes a doubt
            traceback.print_exc()
            close_error = f"{type(e).__name__}: {e}"
        self._channel.send(
            "ended",
            used=used,
            answer_dtype=answer_dtype,
            failed_samples=self._failures.samples,
            failed_batches=self._failures.batches,
            first_failure=self._failures.first,
            close_error=close_error,
        )

    def _open_backends(self, model: Model, stack: ExitStack) -> list[Backend]:
        config = self._config
        cls = registry.load("backend", config.backend)
        path = model.path(getattr(cls, "formats", ()))
        self._model_sha256 = sha256_of(path) if path is not None else None
        self._model_bytes = path.stat().st_size if path is not None else 0
        setup = BackendSetup(
            model=path,
            model_name=model.name,
            inputs=model.inputs,
            threads=self._threads,
            max_batch=self._max_batch,
            provider=config.provider,
            options=dict(config.backend_option),
        )
        backends = []
        for _ in range(self._instances):
            with _plugin(f"backend {config.backend!r}, loading {model.name!r},"):
                backends.append(stack.enter_context(cls(setup)))
        return backends

    def _open_dataset(self, model: Model, backend: Backend) -> Dataset:
        config = self._config
        inputs = self._inputs(model, backend)
        for spec in inputs:
            if not spec.shape or (len(spec.shape) == 1 and isinstance(spec.shape[0], int)):
                raise ConfigError(
                    f"input {spec.name!r} of the model has the shape {list(spec.shape)}: its first "
                    "dimension must be the batch; export the model with one"
                )
        fixed = {s.shape[0] for s in inputs if s.shape and isinstance(s.shape[0], int)}
        if fixed:
            self._max_batch = min(self._max_batch, *fixed)
        name = config.dataset or (model.manifest.dataset if model.manifest else "synthetic")
        cls = registry.load("dataset", name)
        setup = DatasetSetup(
            inputs=inputs,
            data_dir=config.data_dir,
            shapes=dict(config.input_shape),
            seed=config.seed or 0,
        )
        with _plugin(f"dataset {name!r}"):
            dataset: Dataset = cls(setup)
            if len(dataset) < 1:
                raise ConfigError(f"dataset {name!r} is empty: nothing can be measured")
            return dataset

    @staticmethod
    def _inputs(model: Model, backend: Backend) -> tuple[TensorSpec, ...]:
        if isinstance(backend, HasSignature):
            found = backend.signature()
            declared = {s.name for s in model.inputs}
            if declared and declared != {s.name for s in found}:
                raise ConfigError(
                    f"model {model.name!r}: the manifest's inputs are {sorted(declared)}, "
                    f"the file's are {sorted(s.name for s in found)}"
                )
            return model.inputs or found
        return model.inputs

    def _send_loaded(self, backend: Backend, dataset: Dataset, load_s: float) -> None:
        count = len(dataset)
        with _plugin("the dataset's performance_count"):
            own = int(getattr(dataset, "performance_count", count))
            if own < 1:
                raise ValueError(f"{own} must be at least 1")
        self._held = min(self._config.performance_count or own, count)
        with _plugin("describe()"):
            about = {"backend": _plain(backend.describe()), "dataset": _plain(dataset.describe())}
        self._channel.send(
            "loaded",
            **about,
            total_count=count,
            performance_count=self._held,
            synthetic=bool(getattr(dataset, "synthetic", False)),
            max_batch=self._max_batch,
            model_sha256=self._model_sha256,
            model_bytes=self._model_bytes,
            load_s=load_s,
        )

    def _warm_up(
        self, backends: Sequence[Backend], dataset: Dataset, postprocess: Postprocess
    ) -> Array:
        """Every instance answers batches of the sizes to come, then calibrates. -> one answer."""
        powers = {1 << n for n in range(self._max_batch.bit_length())}
        sizes = sorted(powers | {self._max_batch})
        loaded = list(range(min(self._held, sizes[-1])))
        with _plugin("warm-up"):
            dataset.load(loaded)
            batches = [[loaded[i % len(loaded)] for i in range(n)] for n in sizes]
            answerers = [Answerer(backend, dataset, postprocess) for backend in backends]
            self._slowest_ns, row = warm_up(answerers, batches)
            found: Mapping[str, Any] = {}
            if self._calibrate_s and self._dispatch == "inline":
                query = [
                    batches[-1][: self._query_samples - start]
                    for start in range(0, self._query_samples, self._max_batch)
                ]
                found = calibrate_latency(answerers[0], query, self._calibrate_s)
            elif self._calibrate_s:
                found = calibrate_rate(answerers, batches[-1], self._calibrate_s)
            dataset.unload(loaded)
        self._channel.send("calibrated", slowest_batch_ns=self._slowest_ns, **found)
        return row

    def _start_test(self, plan: LoadPlan, dataset: Dataset, dispatcher: Dispatcher) -> Any:
        """LoadGen on a thread of its own; the main thread only waits."""
        settings = settings_for(plan)
        usage: dict[str, Any] = {}
        rss_before_bytes = _rss_bytes()

        def load(indices: list[int]) -> None:
            try:
                dataset.load(indices)
            except BaseException as e:  # noqa: BLE001 - LoadGen cannot be told; end it here
                self._die_loading(e)
            gc.collect()
            gc.freeze()
            usage.setdefault("start", _usage())

        def unload(indices: list[int]) -> None:
            usage["end"] = _usage()
            try:
                dataset.unload(indices)
            except Exception:  # noqa: BLE001 - every answer was given: only worth a note
                traceback.print_exc()

        def issue(ids: list[int], indices: list[int]) -> None:
            try:
                dispatcher.issue(ids, indices)
            except BaseException as e:  # noqa: BLE001 - LoadGen would crash: say why first
                self._die(1, repr(e), e)

        calls = Callbacks(issue, lambda: None, load, unload)
        errors: list[BaseException] = []

        def start() -> None:
            try:
                start_test(plan, settings, self._outdir, calls)
            except BaseException as e:  # noqa: BLE001 - raised again on the main thread
                errors.append(e)

        thread = threading.Thread(target=start, name="loadgen")
        thread.start()
        thread.join()
        if errors:
            raise errors[0]
        return {k: usage["end"][k] - usage["start"][k] for k in usage["end"]} | {
            "rss_before_bytes": rss_before_bytes,
            "rss_peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        }

    def _die_loading(self, error: BaseException) -> None:
        name = self._config.dataset or "of the manifest"
        if isinstance(error, HarnessError):
            self._die(error.exit_status, str(error), error)
        self._die(3, f"dataset {name!r} raised in load: {type(error).__name__}: {error}", error)

    def _die(self, status: int, text: str, error: BaseException) -> NoReturn:
        trace = "".join(traceback.format_exception(error))
        self._channel.send("error", status=status, text=text, trace=trace)
        os._exit(status)


def _usage() -> dict[str, float]:
    """Of this process so far; wall_offset_ns grows only when the wall clock is stepped or slewed."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "cpu_s": used.ru_utime + used.ru_stime,
        "wall_s": time.monotonic(),
        "wall_offset_ns": wall_offset_ns(),
        "voluntary_switches": used.ru_nvcsw,
        "involuntary_switches": used.ru_nivcsw,
    }


def _rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
