"""Runs a PyTorch module on an NVIDIA GPU: pinned inputs, one CUDA graph a batch shape, a stream and an event.

    rows --memcpy--> pinned --copy in--> device --module--> device --copy out--> pinned --> arrays

The part on the GPU is one graph, so a batch costs one launch. An instance waits for its own event alone: other
instances' streams go on, and copy while this one computes.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from harness.core.units import counted
from harness.errors import ConfigError, one_line
from harness.types import Array

MOST_GRAPHS = 256
"""Batch shapes with a graph; further ones run operator by operator."""

_WARM_CALLS = 3
"""Calls before a capture: TorchScript specialises itself in the second, libraries choose their kernels."""

_SMALL_BYTES = 1 << 16
"""Inputs up to this size are copied by NumPy, which starts sooner; larger ones by PyTorch's threads."""

_SMALL_OUTPUT_BYTES = 1 << 18
"""Outputs up to this size are copied out by the graph, to memory that the next batch overwrites, and copied once
more; larger ones into memory of their own.
"""

_Shapes = tuple[tuple[int, ...], ...]

_current = threading.local()
"""`stream`: the one that this thread's work goes to. Setting it for each batch would cost 10 us."""

_capturing = threading.Lock()
"""A capture must not see the allocations of another one."""


class _Graph(NamedTuple):
    """One batch shape. A graph reads and writes always the same memory, which must live as long as it."""

    graph: Any
    inputs: Sequence[Array]
    """Views of the pinned memory that the graph copies to the device."""
    pinned: Sequence[torch.Tensor]
    device: Sequence[torch.Tensor]
    outputs: Sequence[torch.Tensor]
    """On the device; the next batch of the instance overwrites them."""
    hosts: Sequence[torch.Tensor]
    """Small outputs in pinned memory, where the graph copies them; empty where they are large."""
    structure: Any
    """Of PyTorch's pytree: how the outputs are nested."""


class CudaModule:
    """One instance. Used by one thread at a time.

    call: the module, from device tensors to device tensors. graphs: whether shapes are captured.
    spins: the waiting thread polls, which is 0.1 ms sooner than an interrupt and takes a core.
    cuda: PyTorch's interface to the device (torch.cuda).
    """

    def __init__(
        self,
        call: Callable[..., Any],
        device: torch.device,
        *,
        graphs: bool,
        spins: bool,
        cuda: Any = torch.cuda,
    ) -> None:
        self._call, self._device, self._cuda = call, device, cuda
        self._stream = cuda.Stream(device)
        self._spins = spins
        self._done = cuda.Event(blocking=not spins)
        self._pool = cuda.graph_pool_handle() if graphs else None
        self._graphs: dict[_Shapes, _Graph | None] = {}
        """None: the shape runs operator by operator."""
        self._without: dict[_Shapes, str] = {}
        """Why a shape has no graph."""
        self._buffers: dict[int, Sequence[Array] | None] = {}

    def describe(self) -> Mapping[str, object]:
        return {
            "gpu": self._device.index,
            "cuda_graph": self._pool is not None,
            "spinning": self._spins,
        }

    def used(self) -> Mapping[str, object]:
        """Bytes: the most that this process's tensors took of the GPU, and what PyTorch holds for it."""
        return {
            "cuda_graphs": self._describe_graphs(),
            "gpu_memory_peak_bytes": self._cuda.max_memory_allocated(self._device),
            "gpu_memory_reserved_bytes": self._cuda.memory_reserved(self._device),
        }

    def _describe_graphs(self) -> str:
        """How many batch shapes are launched as one, and why others are not."""
        if self._pool is None:
            return "off"
        count = counted(len(self._graphs) - len(self._without), "batch shape")
        return "; ".join((count, *dict.fromkeys(self._without.values())))

    def answer(self, rows: Sequence[Array]) -> Any:
        """(n, ...) arrays in the order of the module's inputs -> its outputs, as tensors in host memory."""
        if getattr(_current, "stream", None) is not self._stream:
            self._cuda.set_stream(self._stream)
            _current.stream = self._stream
        if self._pool is None:
            return self._eager(rows)
        shapes = tuple(each.shape for each in rows)
        if shapes not in self._graphs:
            self._capture(shapes, rows)
        graph = self._graphs.get(shapes)
        if graph is None:
            return self._eager(rows)
        for each, view, pinned in zip(rows, graph.inputs, graph.pinned, strict=True):
            if each is not view:
                _copy(each, view, pinned)
        graph.graph.replay()
        if not graph.hosts:
            return self._to_host(graph.outputs, graph.structure)
        self._wait()
        return tree_unflatten([host.clone() for host in graph.hosts], graph.structure)

    def buffers(self, size: int) -> Sequence[Array] | None:
        """The memory that the graph of a batch of that size reads, in the order of the inputs.

        None where there is no graph, or where batches of that size have several shapes.
        """
        return self._buffers.get(size)

    def _eager(self, rows: Sequence[Array]) -> Any:
        pinned = [self._pinned(torch.from_numpy(each)) for each in rows]
        for each, to in zip(rows, pinned, strict=True):
            _copy(each, to.numpy(), to)
        with torch.inference_mode():
            device = [each.to(self._device, non_blocking=True) for each in pinned]
            outputs, structure = tree_flatten(self._call(*device))
        return self._to_host(outputs, structure)

    def _to_host(self, outputs: Sequence[Any], structure: Any) -> Any:
        """Fresh pinned memory for each batch, which PyTorch keeps and hands out again once it is free."""
        hosts = [
            self._pinned(each).copy_(each, non_blocking=True)
            if isinstance(each, torch.Tensor)
            else each
            for each in outputs
        ]
        self._wait()
        return tree_unflatten(hosts, structure)

    def _wait(self) -> None:
        self._done.record(self._stream)
        self._done.synchronize()

    def _pinned(self, like: torch.Tensor) -> torch.Tensor:
        return torch.empty(like.shape, dtype=like.dtype, pin_memory=self._device.type == "cuda")

    def _capture(self, shapes: _Shapes, rows: Sequence[Array]) -> None:
        if len(self._graphs) >= MOST_GRAPHS:
            return
        try:
            graph = self._graphs[shapes] = self._captured(rows)
            size = shapes[0][0]
            self._buffers[size] = None if size in self._buffers else graph.inputs
        except RuntimeError as e:  # it copies to the host, or chooses its operators by values
            self._graphs[shapes] = None
            self._without[shapes] = one_line(e)

    def _captured(self, rows: Sequence[Array]) -> _Graph:
        pinned = [self._pinned(torch.from_numpy(each)) for each in rows]
        for each, to in zip(rows, pinned, strict=True):
            to.copy_(torch.from_numpy(each))
        device = [torch.empty_like(each, device=self._device) for each in pinned]

        def run() -> Any:
            for each, to in zip(pinned, device, strict=True):
                to.copy_(each, non_blocking=True)
            return self._call(*device)

        with torch.inference_mode():
            for _ in range(_WARM_CALLS - 1):
                run()
            outputs = tree_flatten(run())[0]
        if not all(isinstance(each, torch.Tensor) for each in outputs):
            raise RuntimeError("an output is no tensor")
        is_small = sum(each.nbytes for each in outputs) <= _SMALL_OUTPUT_BYTES
        hosts = [self._pinned(each) for each in outputs] if is_small else []
        self._stream.synchronize()
        graph = self._cuda.CUDAGraph()
        captures = self._cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        with torch.inference_mode(), _capturing, captures:
            outputs, structure = tree_flatten(run())
            for host, output in zip(hosts, outputs, strict=is_small):
                host.copy_(output, non_blocking=True)
        views = [each.numpy() for each in pinned]
        return _Graph(graph, views, pinned, device, outputs, hosts, structure)


def _copy(rows: Array, view: Array, pinned: torch.Tensor) -> None:
    if rows.nbytes <= _SMALL_BYTES:
        view[...] = rows
    else:
        pinned.copy_(torch.from_numpy(rows))


def opened_device(name: str) -> torch.device:
    """cpu, cuda or cuda:1. Raises a ConfigError where PyTorch sees no such device."""
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name}: PyTorch {torch.__version__} sees no CUDA device: is the driver installed, "
            "and PyTorch a CUDA build?"
        )
    number, count = device.index or 0, torch.cuda.device_count()
    if number >= count:
        raise ConfigError(
            f"--device {name}: PyTorch sees {counted(count, 'GPU')}, from number 0 on"
        )
    return torch.device("cuda", number)


def move(program: Any, device: torch.device) -> Any:
    """The exported program on the device, with the tensors that it makes itself."""
    try:
        from torch.export.passes import move_to_device_pass
    except ImportError:  # before PyTorch 2.7
        return program
    return move_to_device_pass(program, str(device))
