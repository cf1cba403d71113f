"""Times each operation of an MNN session with callbacks, which MNN calls before and after the operation."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

from harness.backends.parts.framework import TwinProfiler
from harness.backends.parts.native import mnn_file
from harness.profiler import Executed, ExecutedKernel, Tensor, WiredNode, Wiring
from harness.types import Backend, Batch, Outputs

_ABSENT = {"allocated": "MNN does not report an operation's allocations"}


class _Call(NamedTuple):
    """One operation that MNN ran during a call."""

    name: str
    kind: str
    shape: tuple[int, ...]
    """Shape of the operation's first output."""
    start_ns: int
    end_ns: int


class CalledBack(Backend, Protocol):
    """A backend that lets MNN call functions around each operation."""

    @property
    def file(self) -> mnn_file.MnnFile: ...

    @property
    def output_names(self) -> tuple[str, ...]: ...

    def infer_with(self, batch: Batch, before: Any, after: Any, /) -> Outputs: ...


class MnnProfiler(TwinProfiler):
    """Profiles a session. The callbacks add about 2 us to each operation."""

    def __init__(self, twin: CalledBack, version: str) -> None:
        super().__init__(twin)
        self._backend = twin
        self._version = version
        self._recorded: list[_Call] = []
        self._calls: list[list[_Call]] = []
        self._start_ns = 0

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._recorded = []
        yield
        self._calls.append(self._recorded)

    def infer(self, batch: Batch) -> Outputs:
        return self._backend.infer_with(batch, self._before, self._after)

    def _before(self, _tensors: Any, _info: Any) -> bool:
        self._start_ns = time.perf_counter_ns()
        return True

    def _after(self, tensors: Any, info: Any) -> bool:
        end_ns = time.perf_counter_ns()
        shape = tuple(map(int, tensors[0].getShape())) if tensors else ()
        call = _Call(info.getName(), info.getType(), shape, self._start_ns, end_ns)
        self._recorded.append(call)
        return True

    def executed(self, calls: int) -> Executed:
        last = self._calls[-calls:]
        wiring = self._wiring()
        nodes = list(_nodes(last[-1], wiring))
        shapes = zip(nodes, last[-1], strict=True)
        return Executed(
            runtime=f"MNN {self._version}",
            kernels=[
                ExecutedKernel(
                    node=node,
                    inserted=node.name not in {one.name for one in wiring.nodes},
                    start_ns=tuple(call[index].start_ns for call in last),
                    duration_ns=tuple(call[index].end_ns - call[index].start_ns for call in last),
                )
                for index, node in enumerate(nodes)
            ],
            inputs=wiring.inputs,
            outputs=wiring.outputs,
            constants=wiring.initializers,
            tensors={
                node.outputs[0]: Tensor("float32", call.shape)
                for node, call in shapes
                if call.shape
            },
            file=wiring,
            run_start_ns=tuple(call[0].start_ns for call in last),
            run_ns=tuple(call[-1].end_ns - call[0].start_ns for call in last),
            without_time="MNN computed it when the session was resized",
            absent=_ABSENT,
        )

    def _wiring(self) -> Wiring:
        """Returns the graph in the file; operations without inputs are weights."""
        file = self._backend.file
        inputs = tuple(file.inputs)
        others = [one for one in file.operations if one.type != mnn_file.INPUT]
        kinds = {call.name: call.kind for call in self._calls[-1]}
        constants = frozenset(t for one in others if not one.node.inputs for t in one.node.outputs)
        nodes = [
            one.node._replace(op_type=kinds.get(one.node.name) or mnn_file.kind_name(one.type))
            for one in others
            if one.node.inputs
        ]
        return Wiring(nodes, inputs, self._backend.output_names, constants)


def _nodes(calls: list[_Call], wiring: Wiring) -> Iterator[WiredNode]:
    """Yields the executed operations, wired as in the file. An operation that MNN added counts as a reader of the
    previous output.
    """
    by_name = {node.name: node for node in wiring.nodes}
    before = wiring.inputs
    for call in calls:
        node = by_name.get(call.name)
        if node is None:
            node = WiredNode(call.name, call.kind, "", before, (f"{call.name}#0",))
        yield node
        before = node.outputs
