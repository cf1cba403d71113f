"""Runs a PyTorch module on an NVIDIA GPU, with pinned inputs, one CUDA graph per batch shape, a stream and an event.

rows --memcpy--> pinned --copy in--> device --module--> device --copy out--> pinned --> arrays

The work on the GPU is one graph, so a batch needs a single launch. An instance waits only for the event on the
instance's stream. The streams of other instances continue, and can copy while this instance computes.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from harness.core.units import counted, show_bytes
from harness.errors import ConfigError, one_line
from harness.types import Array

MOST_GRAPHS = 256
"""Maximum number of graphs per instance. Once an instance has this many graphs, batches with other shapes run operator
by operator.
"""

_WARM_CALLS = 3
"""A graph is captured after this many calls. In the second call, TorchScript specialises the module, and libraries
choose their kernels.
"""

_SMALL_BYTES = 1 << 16
"""NumPy copies inputs up to this size, because NumPy starts copying sooner than PyTorch's threads. PyTorch's threads
copy larger inputs.
"""

_SMALL_OUTPUT_BYTES = 1 << 18
"""Outputs up to this size are copied twice: by the graph into memory that the next batch overwrites, and then by the
host. Larger outputs are copied into separate memory.
"""

_current = threading.local()
"""`stream` is the stream on which this thread works. The attribute is set once per thread, not per batch."""

capturing = threading.Lock()
"""Held during a capture, so that allocations and waits of other captures do not disturb this capture. Also held while a
model is loaded, because the mode `error` of a capture applies to the process and would refuse the copies of the weights.
"""


class _Graph(NamedTuple):
    """The graph for one batch size. The graph always reads and writes the same memory, which must be kept as long as
    the graph.
    """

    graph: Any
    outputs: Sequence[torch.Tensor]
    """Outputs on the device, which the instance's next batch overwrites."""
    hosts: Sequence[torch.Tensor]
    """Pinned memory to which the graph copies small outputs; empty if the outputs are large."""
    structure: Any
    """The nesting of the outputs, in the form of PyTorch's pytree."""
    pads: bool
    """True if every output has one row per sample, so that a smaller batch can be padded."""


class _Inputs(NamedTuple):
    """The memory for all batches whose samples have the same shapes and types, sized for the largest batch."""

    arrays: Sequence[Array]
    """NumPy views of `pinned`."""
    pinned: Sequence[torch.Tensor]
    device: Sequence[torch.Tensor]
    graphs: dict[int, _Graph | None]
    """Maps a batch size to its graph; None if the batch size has no graph."""
    views: dict[int, Sequence[Array]]
    """Maps a number of rows to the first rows of `arrays`."""


def graph_size(size: int, largest: int) -> int:
    """Returns the size of the graph that runs a batch of this size. The graph has at most a quarter more rows than the
    batch, which limits the number of graphs.
    """
    step = max(1, (1 << size.bit_length() - 1) // 4)
    return min(largest, -(-size // step) * step)


class CudaModule:
    """One instance on the GPU. Only one thread may use it at a time.

    call: the module, from device tensors to device tensors. largest: number of samples in the largest batch. graphs:
    whether batch shapes are captured as CUDA graphs. spins: whether the waiting thread polls, which is 0.1 ms faster
    than an interrupt but occupies a core. cuda: PyTorch's interface to the device (torch.cuda).
    """

    def __init__(
        self,
        call: Callable[..., Any],
        device: torch.device,
        *,
        largest: int,
        graphs: bool,
        spins: bool,
        cuda: Any = torch.cuda,
    ) -> None:
        self._call, self._device, self._cuda = call, device, cuda
        self._largest = largest
        self._stream = cuda.Stream(device)
        self._spins = spins
        self._done = cuda.Event(blocking=not spins)
        self._pool = cuda.graph_pool_handle() if graphs else None
        self._inputs: dict[tuple[Any, ...], _Inputs] = {}
        """Maps the shape and type of one sample of each input to the memory for batches of such samples."""
        self._count = 0
        self._no_graph = "" if graphs else "off"
        """The reason why no further graphs are captured; "" as long as graphs are captured."""

    def describe(self) -> Mapping[str, object]:
        return {
            "gpu": self._device.index,
            "cuda_graph": self._pool is not None,
            "spinning": self._spins,
        }

    def used(self) -> Mapping[str, object]:
        """Returns the graphs, and the GPU memory in bytes: the peak of this process's tensors, and PyTorch's reserve."""
        return {
            "cuda_graphs": self._count,
            "cuda_graphs_reason": self._no_graph,
            "gpu_memory_peak_bytes": self._cuda.max_memory_allocated(self._device),
            "gpu_memory_reserved_bytes": self._cuda.memory_reserved(self._device),
        }

    def answer(self, rows: Sequence[Array]) -> Any:
        """Returns the outputs as tensors in host memory. rows: (n, ...) arrays in the order of the module's inputs."""
        if getattr(_current, "stream", None) is not self._stream:
            self._cuda.set_stream(self._stream)
            _current.stream = self._stream
        count = len(rows[0])
        if self._pool is None or count > self._largest:
            return self._eager(rows)
        key = tuple((each.shape[1:], each.dtype) for each in rows)
        inputs = self._inputs.get(key)
        if inputs is None:
            inputs = self._inputs[key] = self._memory(rows)
        size = graph_size(count, self._largest)
        if size not in inputs.graphs:
            self._capture(inputs, rows, size)
        graph = inputs.graphs[size]
        if graph is not None and size > count and not graph.pads:
            size = count
            if size not in inputs.graphs:
                self._capture(inputs, rows, size)
            graph = inputs.graphs[size]
        if graph is None:
            return self._eager(rows)
        _fill(inputs, rows, size)
        graph.graph.replay()
        if not graph.hosts:
            outputs = [each[:count] for each in graph.outputs] if size > count else graph.outputs
            return self._to_host(outputs, graph.structure)
        self._wait()
        hosts = [(host[:count] if size > count else host).clone() for host in graph.hosts]
        return tree_unflatten(hosts, graph.structure)

    def buffers(self, size: int) -> Sequence[Array] | None:
        """Returns the memory that the graph for this batch size reads, in the order of the inputs.

        Returns None if the batch size has no graph, or if samples differ in shape.
        """
        if len(self._inputs) != 1:
            return None
        (inputs,) = self._inputs.values()
        if size > self._largest or inputs.graphs.get(graph_size(size, self._largest)) is None:
            return None
        views = inputs.views.get(size)
        if views is None:
            views = inputs.views[size] = [each[:size] for each in inputs.arrays]
        return views

    def _eager(self, rows: Sequence[Array]) -> Any:
        pinned = [self._pinned(torch.from_numpy(each)) for each in rows]
        for each, to in zip(rows, pinned, strict=True):
            _copy(each, to.numpy(), to)
        with torch.inference_mode():
            device = [each.to(self._device, non_blocking=True) for each in pinned]
            outputs, structure = tree_flatten(self._call(*device))
        return self._to_host(outputs, structure)

    def _to_host(self, outputs: Sequence[Any], structure: Any) -> Any:
        """Copies the outputs to new pinned memory, which PyTorch reuses once the memory is free."""
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

    def _memory(self, rows: Sequence[Array]) -> _Inputs:
        pinned = []
        for each in rows:
            shape = (self._largest, *each.shape[1:])
            pinned.append(self._pinned(torch.from_numpy(each)[:1].expand(shape)))
        device = [torch.empty_like(each, device=self._device) for each in pinned]
        return _Inputs([each.numpy() for each in pinned], pinned, device, {}, {})

    def _capture(self, inputs: _Inputs, rows: Sequence[Array], size: int) -> None:
        inputs.graphs[size] = None
        if self._count >= MOST_GRAPHS:
            self._no_graph = f"an instance already has {MOST_GRAPHS} graphs, the maximum"
        if self._no_graph:
            return
        _fill(inputs, rows, size)
        try:
            with capturing:
                inputs.graphs[size] = self._captured(inputs, size)
            self._count += 1
        except RuntimeError as e:
            # After a failed capture, PyTorch's allocator may remain in capture mode, so no further capture is tried.
            self._no_graph = one_line(e)

    def _captured(self, inputs: _Inputs, size: int) -> _Graph:
        """Captures a graph; raises a RuntimeError if the module copies to the host, or if values decide which operators
        the module calls.
        """
        pinned = [each[:size] for each in inputs.pinned]
        device = [each[:size] for each in inputs.device]

        def run() -> Any:
            for each, to in zip(pinned, device, strict=True):
                to.copy_(each, non_blocking=True)
            return self._call(*device)

        with torch.inference_mode():
            for _ in range(_WARM_CALLS - 1):
                run()
            try:
                # In the mode `error`, a module that waits for the GPU fails immediately, not in the middle of a
                # capture.
                self._cuda.set_sync_debug_mode("error")
                outputs = tree_flatten(run())[0]
            finally:
                self._cuda.set_sync_debug_mode("default")
        if not all(isinstance(each, torch.Tensor) for each in outputs):
            raise RuntimeError("an output is not a tensor")
        is_small = sum(each.nbytes for each in outputs) <= _SMALL_OUTPUT_BYTES
        pads = all(each.shape[:1] == (size,) for each in outputs)
        hosts = [self._pinned(each) for each in outputs] if is_small else []
        self._stream.synchronize()
        graph = self._cuda.CUDAGraph()
        captures = self._cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        with torch.inference_mode(), captures:
            outputs, structure = tree_flatten(run())
            for host, output in zip(hosts, outputs, strict=is_small):
                host.copy_(output, non_blocking=True)
        return _Graph(graph, outputs, hosts, structure, pads)


def _fill(inputs: _Inputs, rows: Sequence[Array], size: int) -> None:
    """Copies the rows to the pinned memory, and repeats the last row up to `size`.

    Rows that the caller wrote into `buffers` are already in place.
    """
    count = len(rows[0])
    views = inputs.views.get(count)
    for i, (each, array, pinned) in enumerate(zip(rows, inputs.arrays, inputs.pinned, strict=True)):
        if views is None or each is not views[i]:
            _copy(each, array[:count], pinned[:count])
        if size > count:
            array[count:size] = each[-1:]


def take_rows(rows: Array, places: Array | list[int], into: Array) -> None:
    """Copies rows[places] to `into`; uses PyTorch's threads for more than _SMALL_BYTES."""
    if into.nbytes <= _SMALL_BYTES:
        # The default mode, `raise`, would copy the rows twice.
        np.take(rows, places, axis=0, out=into, mode="clip")
        return
    index = torch.from_numpy(np.asarray(places, np.int64))
    torch.index_select(torch.from_numpy(rows), 0, index, out=torch.from_numpy(into))


def _copy(rows: Array, view: Array, pinned: torch.Tensor) -> None:
    if rows.nbytes <= _SMALL_BYTES:
        view[...] = rows
    else:
        pinned.copy_(torch.from_numpy(rows))


def reason(error: RuntimeError, device: torch.device, cuda: Any = torch.cuda) -> str:
    """Returns the reason for an error on the GPU, without CUDA's advice for programmers. cuda: as in CudaModule."""
    text = str(error).partition("\n")[0]
    if "out of memory" not in text:
        return text
    try:
        free, total = cuda.mem_get_info(device)
    except RuntimeError:  # raised if the context does not fit into memory, or the GPU is lost
        amount = ""
    else:
        amount = f" ({show_bytes(free)} of {show_bytes(total)} are free)"
    return (
        f"the memory of GPU {device.index} is full{amount}: stop other programs on it, or lower "
        "--instances or --max-batch"
    )


def opened_device(name: str) -> torch.device:
    """Opens a device such as cpu, cuda or cuda:1. Raises a ConfigError if PyTorch does not find the device."""
    device = torch.device(name)
    if device.type == "cpu":
        return device
    if not torch.cuda.is_available():
        raise ConfigError(
            f"--device {name}: PyTorch {torch.__version__} sees no CUDA device: check that the driver is "
            "installed and PyTorch is a CUDA build"
        )
    number, count = device.index or 0, torch.cuda.device_count()
    if number >= count:
        raise ConfigError(f"--device {name}: PyTorch sees {counted(count, 'GPU')}, numbered from 0")
    return torch.device("cuda", number)


def move(program: Any, device: torch.device) -> Any:
    """Returns the exported program on the device, including tensors that the program creates."""
    try:
        from torch.export.passes import move_to_device_pass
    except ImportError:  # the module does not exist before PyTorch 2.7
        return program
    return move_to_device_pass(program, str(device))
