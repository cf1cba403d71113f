"""Defines the report of a backend's profiler: the executed kernels, their times and their graph.

`Profiler.executed` returns this report, and harness/explain/kernels maps each kernel to the nodes of the model's file
that it executes.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from types import TracebackType
from typing import NamedTuple, Protocol, Self, runtime_checkable

from harness.types import Batch, Outputs

CONTROL_FLOW = frozenset({"If", "Loop", "Scan"})
NO_OPS = frozenset({"Identity", "Dropout"})
"""Operators whose output equals their input at inference."""


class WiredNode(NamedTuple):
    """A node of a graph, and the tensors that it reads and writes."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    """Names of the input tensors; '' for an omitted optional input. A node with subgraphs also lists the tensors that
    its subgraphs read from outside.
    """
    outputs: tuple[str, ...]
    """Names of the output tensors; '' for an omitted optional output."""


@dataclass(frozen=True)
class Wiring:
    """The nodes of a graph and the tensors that connect them, without weights and shapes."""

    nodes: Sequence[WiredNode]
    """Nodes in topological order. If the file's order is topological, it is kept."""
    inputs: tuple[str, ...]
    """Model inputs, without weights."""
    outputs: tuple[str, ...]
    initializers: frozenset[str]
    """Tensors that are weights."""

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """Maps a tensor to the index of the node that produces it."""
        return {t: i for i, node in enumerate(self.nodes) for t in node.outputs if t}

    @cached_property
    def made_by_name(self) -> Mapping[str, str]:
        """Maps a node's name to its first output, for names that occur once."""
        count = Counter(node.name for node in self.nodes)
        return {n.name: n.outputs[0] for n in self.nodes if count[n.name] == 1 and n.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[int]]:
        """Maps a tensor to the ascending indices of the nodes that consume it."""
        consumers: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for tensor in dict.fromkeys(node.inputs):
                consumers.setdefault(tensor, []).append(i)
        return consumers

    @cached_property
    def constants(self) -> frozenset[str]:
        """Returns the tensors that do not depend on any input of the model."""
        constants = set(self.initializers)
        for node in self.nodes:
            if all(not t or t in constants for t in node.inputs):
                constants.update(node.outputs)
        return frozenset(constants)

    @cached_property
    def originals(self) -> Mapping[str, str]:
        """Maps the output of a NO_OPS node to the tensor that enters the chain of NO_OPS nodes that ends at this
        output.
        """
        same: dict[str, str] = {}
        for node in self.nodes:
            if node.op_type in NO_OPS and node.inputs and node.outputs:
                same[node.outputs[0]] = same.get(node.inputs[0], node.inputs[0])
        return same


class Tensor(NamedTuple):
    """Type and shape of a tensor."""

    dtype: str
    """The framework's name, e.g. float, float32, int64."""
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedKernel:
    """One node of the graph that a framework executes."""

    node: WiredNode
    """A node of the executed graph. A tensor that also occurs in the model file keeps its name from that file."""
    implementation: str = ""
    """The code that the framework chose for the node; '' if the framework does not report it."""
    inserted: bool = False
    """Whether the framework added the node to change a layout. Such a node is not in the model file."""
    start_ns: tuple[int, ...] = ()
    """Start time of each call, on the clock of `Executed.run_start_ns`; () if the framework does not report it."""
    duration_ns: tuple[int, ...] = ()
    """Duration of each call. A single entry means that the framework reports only the mean of all calls, and () that it
    measured no time.
    """
    allocated_bytes: int | None = None
    """Memory that was allocated and not freed; None if the framework does not report it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """The kernels that the recorded calls executed."""

    runtime: str
    """The framework and its version."""
    kernels: Sequence[ExecutedKernel]
    """The kernels in the order of their execution."""
    inputs: tuple[str, ...]
    """Inputs of the model."""
    outputs: tuple[str, ...]
    """Outputs of the model."""
    constants: frozenset[str]
    """Tensors whose values are known once the model is loaded."""
    tensors: Mapping[str, Tensor]
    """Type and shape of each tensor for which they are known."""
    file: Wiring | None
    """The graph in the model file; None if the file is an ONNX file."""
    run_start_ns: tuple[int, ...]
    """Time at which each call entered the framework."""
    run_ns: tuple[int, ...]
    """Duration of each call inside the framework."""
    without_time: str
    """Reason why some kernels have no time; '' if all of them have a time."""
    copies: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Maps a direction, e.g. `to the GPU`, to the time in ns that copies between host and device took in each call."""
    absent: Mapping[str, str] = field(default_factory=dict)
    """Maps `spread`, `start` or `allocated` to the reason why the framework does not report it."""


class Profiler(Protocol):
    """A second instance of the model, whose calls are recorded by the framework's profiler."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None: ...

    def infer(self, batch: Batch, /) -> Outputs: ...

    def recording(self) -> AbstractContextManager[object]:
        """Returns a context manager to use around each call. The time to enter and leave it does not count as part of
        the call.
        """

    def executed(self, calls: int, /) -> Executed:
        """Returns the kernels of the last `calls` recorded calls; earlier calls were the warm-up."""


@runtime_checkable
class HasProfiler(Protocol):
    """A backend that reports the kernels it executes."""

    def profiler(self) -> Profiler:
        """Returns a profiler that has not been entered yet. Raises a ConfigError if these options cannot be profiled."""
