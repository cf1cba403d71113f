"""Defines what a framework reports about a model it executed: kernels, their times, their graph.

A backend tells it in these words (`Profiler`); harness/explain/kernels finds out which nodes of the model's
file each kernel stands for.
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
"""Give at inference what they get."""


class WiredNode(NamedTuple):
    """inputs: for a node with subgraphs, also the outer tensors that these read. "" is no input."""

    name: str
    op_type: str
    domain: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Wiring:
    """How the nodes of a graph are connected: names and tensors, no weights, no shapes.
    nodes: in topological order, the file's where it is topological.
    inputs: without weights.
    """

    nodes: Sequence[WiredNode]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    initializers: frozenset[str]

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """tensor -> index of the node that computes it."""
        return {t: i for i, node in enumerate(self.nodes) for t in node.outputs if t}

    @cached_property
    def made_by_name(self) -> Mapping[str, str]:
        """Node name -> first output, for names that occur once."""
        count = Counter(node.name for node in self.nodes)
        return {n.name: n.outputs[0] for n in self.nodes if count[n.name] == 1 and n.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, Sequence[int]]:
        """tensor -> indices of the nodes that read it, ascending."""
        readers: dict[str, list[int]] = {}
        for i, node in enumerate(self.nodes):
            for tensor in dict.fromkeys(node.inputs):
                readers.setdefault(tensor, []).append(i)
        return readers

    @cached_property
    def constants(self) -> frozenset[str]:
        """Every tensor that depends on no input of the model."""
        constants = set(self.initializers)
        for node in self.nodes:
            if all(not t or t in constants for t in node.inputs):
                constants.update(node.outputs)
        return frozenset(constants)

    @cached_property
    def originals(self) -> Mapping[str, str]:
        """tensor -> the tensor it equals before all no-op nodes; itself otherwise."""
        same: dict[str, str] = {}
        for node in self.nodes:
            if node.op_type in NO_OPS and node.inputs and node.outputs:
                same[node.outputs[0]] = same.get(node.inputs[0], node.inputs[0])
        return same


class Tensor(NamedTuple):
    """dtype: the framework's name, e.g. float, float32, int64."""

    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedKernel:
    """One node of the graph that a framework executes.
    node: of that graph; a tensor that is also in the model's file has the file's name.
    implementation: the framework's code variant, where reported.
    inserted: not in the file; it only changes a layout.
    start_ns: one entry a call, on the clock of `Executed.run_start_ns`; empty where not reported.
    duration_ns: one entry a call; one entry alone is the mean of all calls; empty where not timed.
    allocated_bytes: allocated less what was returned; None where not reported.
    """

    node: WiredNode
    implementation: str = ""
    inserted: bool = False
    start_ns: tuple[int, ...] = ()
    duration_ns: tuple[int, ...] = ()
    allocated_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """The framework's report on the recorded calls.
    kernels: in order of execution.
    runtime: the framework and its version.
    inputs, outputs: of the model.
    constants: tensors known when the model is loaded.
    tensors: type and shape of each tensor, where known.
    file: the graph of the model's own file; None where that is an ONNX file.
    run_start_ns, run_ns: start and duration of each call inside the framework.
    without_time: why kernels have no time.
    absent: `spread`, `start` or `allocated` -> why it is not reported.
    """

    runtime: str
    kernels: Sequence[ExecutedKernel]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: frozenset[str]
    tensors: Mapping[str, Tensor]
    file: Wiring | None
    run_start_ns: tuple[int, ...]
    run_ns: tuple[int, ...]
    without_time: str
    absent: Mapping[str, str] = field(default_factory=dict)


class Profiler(Protocol):
    """The same model on the same framework, its calls under the framework's own profiler."""

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
        """Context of each call; starting and stopping the recording is not part of the call."""

    def executed(self, calls: int, /) -> Executed:
        """Reports the last `calls` recorded calls; those before were warm-up."""


@runtime_checkable
class HasProfiler(Protocol):
    """A backend that can report the kernels it executes."""

    def profiler(self) -> Profiler:
        """Not entered yet. Raises ConfigError where these options cannot be profiled."""
