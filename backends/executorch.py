"""Runs ExecuTorch programs (.pte)."""

import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

with warnings.catch_warnings(action="ignore"):  # the package warns about its own modules
    from executorch.extension.pybindings.portable_lib import (
        Verification,
        _threadpool_get_thread_count,
        _unsafe_reset_threadpool,
    )
    from executorch.runtime import Runtime

from harness.backends.parts.executorch.program import METHOD, XNNPACK, Port, Program, read
from harness.backends.parts.framework import FrameworkBackend, named
from harness.core.number_types import precision
from harness.errors import ConfigError
from harness.profiler import Profiler
from harness.types import Array, Backend, BackendSetup, Batch, Network, Outputs, TensorSpec

_UNREADABLE = "bfloat16"
"""A number type that programs can use but NumPy lacks; programs with such inputs are refused."""


class _Pool:
    """The thread pool of the process. Loaded programs refer to the pool, so the size of the pool can change only while
    no program is loaded.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._programs = 0

    def take(self, threads: int) -> None:
        """Sets the size of the pool; raises a ConfigError if a loaded program uses a different number of threads."""
        with self._lock:
            now = _threadpool_get_thread_count()
            if now != threads and self._programs:
                raise ConfigError(
                    f"--threads {threads}: ExecuTorch has one thread pool per process, and a loaded program uses it with "
                    f"{now}: add --backend-option processes=on"
                )
            if now != threads:
                _unsafe_reset_threadpool(threads)
            self._programs += 1

    def leave(self) -> None:
        with self._lock:
            self._programs -= 1


_pool = _Pool()


class ExecuTorchBackend(FrameworkBackend):
    """Runs the method `forward` of an ExecuTorch program.

    The inputs of a program have no names, so they follow the manifest's order; a single output has no name either. If
    the method returns a dict, its keys are the output names; otherwise, several outputs are named `output_0`,
    `output_1` and so on. A program records its largest batch; the manifest names any other sizes that vary. ExecuTorch
    holds Python's GIL while it computes.
    """

    name = "executorch"
    title = "ExecuTorch"
    formats = ("executorch",)
    holds_gil: ClassVar[bool] = True
    _traces = False
    """If true, the program records an ETDump, which slows the program down."""

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        self._is_in_pool = False

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        warnings.filterwarnings(
            "ignore", "The given NumPy array is not writable"
        )  # a read-only array is safe, because the runtime only reads it
        self._refuse_names()
        self._facts = read(self._path)
        runtime = Runtime.get()
        refuse_missing(self._path, self._facts, runtime)
        inputs = tuple(self._specs(self._facts.inputs))
        _pool.take(self._setup.threads)
        self._is_in_pool = True
        try:
            self._open(runtime)
        except BaseException:
            self._close()
            raise
        return inputs, self._facts.outputs

    def _open(self, runtime: Any) -> None:
        self._program = runtime.load_program(
            self._path,
            verification=Verification.InternalConsistency,
            enable_etdump=self._traces,
        )
        self._method = self._program.load_method(METHOD)
        self._execute = _without_copies(self._method)

    def _refuse_names(self) -> None:
        if self._setup.names:
            raise ConfigError(
                f"{self._path}: an ExecuTorch program has no names, so its inputs are in the manifest's order: drop "
                "this file's `names`"
            )

    def _specs(self, ports: Sequence[Port]) -> Iterator[TensorSpec]:
        """Yields the inputs with the manifest's names. If the sizes of an input may vary, the manifest determines which
        of them are open.
        """
        declared = self._setup.inputs
        if declared and len(declared) != len(ports):
            raise ConfigError(
                f"model {self._setup.model_name!r}: the manifest has {len(declared)} inputs, {self._path} has "
                f"{len(ports)}: list them in the order of the method's arguments"
            )
        for number, port in enumerate(ports):
            if port.dtype == _UNREADABLE:
                raise ConfigError(
                    f"{self._path}: an input is bfloat16, which NumPy lacks: export it with float32 inputs"
                )
            spec = declared[number] if declared else None
            yield self._spec(spec.name if spec else f"input_{number}", port, spec)

    def _spec(self, name: str, port: Port, declared: TensorSpec | None) -> TensorSpec:
        if not port.varies:
            return TensorSpec(name, port.dtype, port.sizes)
        most = port.sizes[0] if port.sizes else 1
        if most == 1:
            return TensorSpec(name, port.dtype, port.sizes)
        if self._setup.max_batch > most:
            raise ConfigError(
                f"{self._path} takes at most {most} samples at once, but batches may have {self._setup.max_batch}: "
                f"add --max-batch {most}, or export it with a larger Dim"
            )
        own: list[int | str | None] = [None, *port.sizes[1:]]
        if declared is not None and len(declared.shape) == len(own):
            own = [
                mine if isinstance(theirs, int) else theirs
                for mine, theirs in zip(own, declared.shape, strict=True)
            ]
            own[0] = None
        return TensorSpec(name, port.dtype, tuple(own))

    def __exit__(self, *exc: object) -> None:
        self._close()

    def _close(self) -> None:
        self._method = self._program = self._execute = None
        if self._is_in_pool:
            self._is_in_pool = False
            _pool.leave()

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        rows = [torch.from_numpy(inputs[spec.name]) for spec in self._inputs]
        arrays = [_array(one) for one in self._execute(rows)]
        return named(self._outputs, arrays)

    def network(self, _batch: Batch) -> Network:
        return Network(self._facts.weights, None, None)

    def profiler(self) -> Profiler:
        from harness.backends.parts.executorch.kernels import ExecuTorchProfiler

        return ExecuTorchProfiler(_Traced(self._setup))

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": f"executorch {version('executorch')}",
            "device": "cpu",
            "precision": precision(self._facts.weights, [spec.dtype for spec in self._inputs]),
            "threads": _threadpool_get_thread_count(),
            "threads_of": "the process",
            "math_library": "XNNPACK" if XNNPACK in self._facts.delegates else "ExecuTorch's own",
            "delegates": ", ".join(sorted({*self._facts.delegates})) or "none",
            "operators_outside_delegates": len(self._facts.operators),
        }


class _Traced(ExecuTorchBackend):
    """A second instance for profiling, whose program records each run."""

    _traces = True

    def write_dump(self, folder: Path) -> Path:
        """Writes the ETDump of the runs since the previous call."""
        path = folder / "run.etdp"
        self._program.write_etdump_result_to_file(str(path), str(folder / "none.bin"))
        return path


def refuse_missing(path: Path, facts: Program, runtime: Any) -> None:
    """Raises a ConfigError that lists the operators and delegates that the program calls but the runtime lacks."""
    delegates = [d for d in facts.delegates if not runtime.backend_registry.is_available(d)]
    lacking = [*sorted(facts.operators - runtime.operator_registry.operator_names), *delegates]
    if lacking:
        raise ConfigError(
            f"{path} needs {', '.join(lacking)}, which the installed package executorch lacks: export it for "
            f"{XNNPACK}, or with core ATen operators"
        )


def _without_copies(method: Any) -> Any:
    """Returns a function that executes the method without copying its outputs, because NumPy copies outputs faster than
    ExecuTorch does.
    """
    inner = getattr(method, "_method", None)
    return method.execute if inner is None else partial(inner.call, clone_outputs=False)


def _array(output: Any) -> Array:
    """Returns a copy of an output."""
    if not isinstance(output, torch.Tensor):
        raise ConfigError(
            f"an output is a {type(output).__name__}: export the method with tensors only"
        )
    if output.dtype is torch.bfloat16:
        output = output.float()
    array: Array = np.array(output.numpy())
    return array


_: type[Backend] = ExecuTorchBackend
