"""Times each layer of an ncnn net by extracting one blob after another; ncnn computes only the layers up to the
extracted blob.

ncnn's timer is part of ncnn's C++ benchmark, but not of ncnn's Python package.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import ncnn

from harness.backends.parts.framework import TwinProfiler
from harness.backends.parts.native.ncnn_file import Layer
from harness.profiler import Executed, ExecutedKernel, Tensor, WiredNode, Wiring
from harness.types import Backend, Batch, Outputs

_AS_IT_IS = 1
"""Type of an extraction that keeps the blob in ncnn's layout and number type, so that no conversion is timed."""

_NO_KERNELS = ("Input", "MemoryData")

_ABSENT = {
    "start": "ncnn answers sample by sample, and a layer's times are added up",
    "allocated": "ncnn does not report a layer's allocations",
}


Step = Callable[[Any, int, Sequence[tuple[str, int]]], None]
"""Computes a layer. Arguments: ncnn's extractor, the layer's number, and the name and number of each blob that the
layer writes.
"""


class Layered(Backend, Protocol):
    """A backend that can compute layer by layer."""

    @property
    def layers(self) -> Sequence[Layer]: ...

    @property
    def output_names(self) -> tuple[str, ...]: ...

    def infer_by_layers(self, batch: Batch, step: Step, /) -> Outputs: ...


class NcnnProfiler(TwinProfiler):
    """Profiles a net by computing it layer by layer. Every blob is kept until the end of the call, which takes more
    memory than a run.
    """

    def __init__(self, twin: Layered) -> None:
        super().__init__(twin)
        self._backend = twin
        self._recorded: dict[int, int] = {}
        self._calls: list[Mapping[int, int]] = []
        """Maps, for each call, the number of a kernel to the kernel's time in ns, summed over all samples."""
        self._runs_ns: list[int] = []
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._size = 1

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._recorded = {}
        start_ns = time.perf_counter_ns()
        yield
        self._runs_ns.append(time.perf_counter_ns() - start_ns)
        self._calls.append(self._recorded)

    def infer(self, batch: Batch) -> Outputs:
        self._size = batch.size
        return self._backend.infer_by_layers(batch, self._step)

    def _step(self, extractor: Any, index: int, tops: Sequence[tuple[str, int]]) -> None:
        start_ns = time.perf_counter_ns()
        mats = [extractor.extract(blob, _AS_IT_IS)[1] for _, blob in tops]
        spent_ns = time.perf_counter_ns() - start_ns
        self._recorded[index] = self._recorded.get(index, 0) + spent_ns
        for (name, _), mat in zip(tops, mats, strict=True):
            if name not in self._shapes:
                self._shapes[name] = shape_of(mat)

    def executed(self, calls: int) -> Executed:
        layers = self._backend.layers
        kernels = [layer for layer in layers if layer.kind not in _NO_KERNELS]
        inputs = tuple(top for layer in layers if layer.kind == "Input" for top in layer.tops)
        constants = frozenset(
            top for layer in layers if layer.kind == "MemoryData" for top in layer.tops
        )
        last = self._calls[-calls:]
        nodes = [_node(layer) for layer in kernels]
        return Executed(
            runtime=f"ncnn {ncnn.__version__}",
            kernels=[
                ExecutedKernel(
                    node=node,
                    duration_ns=tuple(call[index] for call in last),
                )
                for index, node in enumerate(nodes)
            ],
            inputs=inputs,
            outputs=self._backend.output_names,
            constants=constants,
            tensors={
                name: Tensor("float32", (self._size, *shape))
                for name, shape in self._shapes.items()
            },
            file=Wiring(nodes, inputs, self._backend.output_names, constants),
            run_start_ns=(),
            run_ns=tuple(self._runs_ns[-calls:]),
            without_time="",
            absent=_ABSENT,
        )


def kernels_of(layers: Sequence[Layer], blobs: Mapping[str, int]) -> list[list[tuple[str, int]]]:
    """Returns, for each layer that computes, the name and the number of each blob that it writes."""
    return [
        [(top, blobs[top]) for top in layer.tops]
        for layer in layers
        if layer.kind not in _NO_KERNELS
    ]


def _node(layer: Layer) -> WiredNode:
    return WiredNode(layer.name, layer.kind, "", layer.bottoms, layer.tops)


def shape_of(mat: Any) -> tuple[int, ...]:
    """Returns the blob's shape without ncnn's packing of channels."""
    dims = {1: ("w",), 2: ("h", "w"), 3: ("c", "h", "w"), 4: ("c", "d", "h", "w")}[mat.dims]
    sizes = [int(getattr(mat, name)) for name in dims]
    sizes[0] *= int(mat.elempack)
    return tuple(sizes)
