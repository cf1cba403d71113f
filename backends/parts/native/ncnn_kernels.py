"""Times each layer of an ncnn net: blob after blob is extracted, and ncnn computes only the layers up to it.

ncnn's own timer is compiled into its C++ benchmark and not into its Python package.
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
"""Type of an extraction: the blob keeps ncnn's layout and number type, so that no conversion is timed."""

_NO_KERNELS = ("Input", "MemoryData")

_ABSENT = {"allocated": "ncnn does not report a layer's allocations"}


Step = Callable[[Any, Sequence[tuple[str, int]]], None]
"""Computes a layer: gets ncnn's extractor, and the name and the number of each blob that the layer writes."""


class Layered(Backend, Protocol):
    """The backend, which answers layer by layer."""

    @property
    def layers(self) -> Sequence[Layer]: ...

    @property
    def output_names(self) -> tuple[str, ...]: ...

    def infer_by_layers(self, batch: Batch, step: Step, /) -> Outputs: ...


class NcnnProfiler(TwinProfiler):
    """Answers layer by layer. Every blob is kept until the end of the call, which takes more memory than a run."""

    def __init__(self, twin: Layered) -> None:
        super().__init__(twin)
        self._backend = twin
        self._calls: list[list[tuple[int, int]]] = []
        """For each call: start and duration of each kernel in ns."""
        self._runs: list[tuple[int, int]] = []
        self._tensors: dict[str, Tensor] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._recorded: list[tuple[int, int]] = []
        yield
        self._calls.append(self._recorded)
        start_ns = self._recorded[0][0]
        self._runs.append((start_ns, sum(self._recorded[-1]) - start_ns))

    def infer(self, batch: Batch) -> Outputs:
        return self._backend.infer_by_layers(batch, self._step)

    def _step(self, extractor: Any, tops: Sequence[tuple[str, int]]) -> None:
        """Computes one layer. tops: name and number of each blob that it writes."""
        start_ns = time.perf_counter_ns()
        mats = [extractor.extract(blob, _AS_IT_IS)[1] for _, blob in tops]
        self._recorded.append((start_ns, time.perf_counter_ns() - start_ns))
        for (name, _), mat in zip(tops, mats, strict=True):
            if name not in self._tensors:
                self._tensors[name] = _tensor(mat)

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
                    start_ns=tuple(call[index][0] for call in last),
                    duration_ns=tuple(call[index][1] for call in last),
                )
                for index, node in enumerate(nodes)
            ],
            inputs=inputs,
            outputs=self._backend.output_names,
            constants=constants,
            tensors=self._tensors,
            file=Wiring(nodes, inputs, self._backend.output_names, constants),
            run_start_ns=tuple(start for start, _ in self._runs[-calls:]),
            run_ns=tuple(duration for _, duration in self._runs[-calls:]),
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


def _tensor(mat: Any) -> Tensor:
    number = {2: "float16", 1: "int8"}.get(int(mat.elemsize) // int(mat.elempack), "float32")
    return Tensor(number, shape_of(mat))


def shape_of(mat: Any) -> tuple[int, ...]:
    """Returns the blob's shape with the batch, and without ncnn's packing of channels."""
    dims = {1: ("w",), 2: ("h", "w"), 3: ("c", "h", "w"), 4: ("c", "d", "h", "w")}[mat.dims]
    sizes = [int(getattr(mat, name)) for name in dims]
    sizes[0] *= int(mat.elempack)
    return int(mat.n), *sizes
