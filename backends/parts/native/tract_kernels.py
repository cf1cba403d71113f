"""Reads tract's own profile: the mean time of each prepared operation, assigned to a node of the file.

tract names an operation after a node; if a node becomes several operations, the name of each ends with a suffix, as in
`conv1.im2col`. The profile does not describe tensors.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from harness.backends.parts.framework import TwinProfiler
from harness.core.formats.protobuf import fields, mapped, messages
from harness.profiler import Executed, ExecutedKernel, WiredNode
from harness.types import Backend, Batch, Outputs

_NS_PER_S = 1_000_000_000

_GRAPH = 7
_NODE, _INITIALIZER, _INPUT, _OUTPUT = 1, 5, 11, 12
_READS, _WRITES, _NAME, _TYPE, _DOMAIN = 1, 2, 3, 4, 7
_TENSOR_NAME, _VALUE_NAME = 8, 1
"""Field numbers of ONNX's ModelProto, GraphProto, NodeProto, TensorProto and ValueInfoProto."""

_PRODUCT = "OptMatMul"
"""tract's operation for convolutions and matrix products; the operation includes the activations and additions that
follow.
"""

_ABSENT = {
    "spread": "tract reports means over a few seconds, so these means are not trimmed",
    "start": "tract reports how long an operation took, not when it started",
    "allocated": "tract does not report an operation's allocations",
}


class _Operation(NamedTuple):
    """An operation that tract has prepared."""

    name: str
    kind: str
    mean_ns: int


class _Part(NamedTuple):
    """A node of the file, with the operations that tract named after it."""

    node: WiredNode
    operations: Sequence[_Operation]

    @property
    def has_product(self) -> bool:
        return any(one.kind == _PRODUCT for one in self.operations)


class SelfProfiled(Backend, Protocol):
    """A backend whose framework can profile a batch."""

    @property
    def path(self) -> Path: ...

    def profile_json(self, batch: Batch, /) -> str: ...


class TractProfiler(TwinProfiler):
    """Repeats the network of the last batch for several seconds with tract's own profiler."""

    def __init__(self, twin: SelfProfiled, version: str) -> None:
        super().__init__(twin)
        self._backend = twin
        self._version = version
        self._runs_ns: list[int] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        start_ns = time.perf_counter_ns()
        yield
        self._runs_ns.append(time.perf_counter_ns() - start_ns)

    def infer(self, batch: Batch) -> Outputs:
        self._batch = batch
        return self._backend.infer(batch)

    def executed(self, calls: int) -> Executed:
        graph = _Graph(self._backend.path)
        operations = list(_operations(json.loads(self._backend.profile_json(self._batch))))
        parts = _merged(list(_parts(graph.nodes, operations)))
        return Executed(
            runtime=f"tract {self._version}",
            kernels=[
                ExecutedKernel(
                    node=part.node,
                    implementation="+".join(dict.fromkeys(one.kind for one in part.operations)),
                    duration_ns=(sum(one.mean_ns for one in part.operations),),
                )
                for part in parts
            ],
            inputs=graph.inputs,
            outputs=graph.outputs,
            constants=graph.constants,
            tensors={},
            file=None,
            run_start_ns=(),
            run_ns=tuple(self._runs_ns[-calls:]),
            without_time="tract computed it when it prepared the network, or in another node's operation",
            absent=_ABSENT,
        )


class _Graph:
    """The nodes of an ONNX file, and the tensors that enter and leave it."""

    def __init__(self, path: Path) -> None:
        (graph,) = list(messages(mapped(path), _GRAPH))[-1:]
        self.nodes = [_node(message) for message in messages(graph, _NODE)]
        weights = messages(graph, _INITIALIZER)
        self.constants = frozenset(_texts(weight, _TENSOR_NAME)[0] for weight in weights)
        names = [_texts(value, _VALUE_NAME)[0] for value in messages(graph, _INPUT)]
        self.inputs = tuple(name for name in names if name not in self.constants)
        self.outputs = tuple(_texts(value, _VALUE_NAME)[0] for value in messages(graph, _OUTPUT))


def _node(message: memoryview) -> WiredNode:
    found: dict[int, list[str]] = {key: [] for key in (_READS, _WRITES, _NAME, _TYPE, _DOMAIN)}
    for number, value in fields(message):
        if number in found and isinstance(value, memoryview):
            found[number].append(bytes(value).decode())
    (name, kind, domain) = ("".join(found[key]) for key in (_NAME, _TYPE, _DOMAIN))
    return WiredNode(name, kind, domain, tuple(found[_READS]), tuple(found[_WRITES]))


def _texts(message: memoryview, number: int) -> list[str]:
    return [bytes(text).decode() for text in messages(message, number)] or [""]


def _operations(report: Mapping[str, Any]) -> Iterator[_Operation]:
    """Yields the operations of the outer network in tract's order, except operations that took no time."""
    nodes = [one for one in report["nodes"] if not one["qualified_id"][0]]
    for one in sorted(nodes, key=lambda node: int(node["qualified_id"][1])):
        seconds = one.get("secs_per_iter")
        if seconds and one["op_name"] != "Source":
            yield _Operation(one["node_name"], one["op_name"], round(seconds * _NS_PER_S))


def _parts(nodes: Sequence[WiredNode], operations: Sequence[_Operation]) -> Iterator[_Part]:
    """Yields the file's nodes for which tract prepared operations. A node without a name is identified by its first
    output.
    """
    names = {node.name or next(iter(node.outputs), ""): at for at, node in enumerate(nodes)}
    of_node: dict[int, list[_Operation]] = {}
    for operation in operations:
        at = _owner(operation.name, names)
        if at is not None:
            of_node.setdefault(at, []).append(operation)
    for at in sorted(of_node):
        yield _Part(nodes[at], of_node[at])


def _owner(name: str, names: Mapping[str, int]) -> int | None:
    """Returns the node with the longest name that is a prefix of `name`."""
    while name:
        if name in names:
            return names[name]
        name = name.rpartition(".")[0]
    return None


def _merged(parts: Sequence[_Part]) -> list[_Part]:
    """Joins a convolution or matrix product with the next node if tract computes both in one operation, which tract
    names after the next node.
    """
    readers: dict[str, int] = {}
    for part in parts:
        for tensor in part.node.inputs:
            readers[tensor] = readers.get(tensor, 0) + 1
    made = {tensor: part for part in parts for tensor in part.node.outputs}
    merged: dict[str, _Part] = {}
    gone: set[str] = set()
    for part in parts:
        first = next(iter(part.node.inputs), "")
        before = merged.get(first) or made.get(first)
        if part.has_product and before and not before.has_product and readers[first] == 1:
            node = part.node._replace(inputs=(*before.node.inputs, *part.node.inputs[1:]))
            gone.update(before.node.outputs)
            part = _Part(node, [*before.operations, *part.operations])  # noqa: PLW2901
        merged.update(dict.fromkeys(part.node.outputs, part))
    kept: dict[int, _Part] = {id(part): part for part in merged.values()}
    return [part for part in kept.values() if not gone.intersection(part.node.outputs)]
