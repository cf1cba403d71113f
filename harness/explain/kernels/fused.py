"""Maps each kernel to the nodes of the model's file that the kernel computes after fusion.

The runtime saves the graph that it executes. For most kernels, the name of the output tensor is the same as in the
file, or the kernel is named after its output tensor. Such a kernel computes the nodes between its inputs and its
output. These nodes form a cut of the file's graph. If the output of a kernel is not a tensor of the file, the kernel
shares the cut of the kernels that read its output. Each kernel therefore computes at least one node.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.explain.kernels.fused_integers import (
    QUANTISERS,
    IntegerKernels,
    activations,
    key,
    known_data,
)
from harness.profiler import NO_OPS, WiredNode, Wiring

# ONNX Runtime names a kernel in its blocked layout after the tensor that this kernel computes. A suffix names an
# operator that ONNX Runtime turned into a convolution.
_BLOCKED = re.compile(r"(.+?)(?:_bn|_mul)?_nchwc(?:_token_\d+|_\d+)?")
_BLOCKED_WHOLE = re.compile(r"(.+)_nchwc(?:_token_\d+|_\d+)?")
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput"})
# Suffix that a fusion of ONNX Runtime adds to the name of the last node that the fusion replaces.
_FUSION = re.compile(r"(.+)/\w+Fusion/")
_CHANGED = "Transpose"


class Origin(NamedTuple):
    """The nodes of the file that a kernel computes. nodes: indices in the file, ascending, never empty.
    inserted: whether the kernel only copies data or changes the layout for these nodes, and does not compute them.
    """

    nodes: tuple[int, ...]
    inserted: bool


@dataclass(frozen=True, slots=True)
class KernelMap:
    """Each node of the file is in either `origins` or `eliminated`.
    origins: one origin per executed node, in order.
    eliminated: the reason why a node of the file has no kernel, by node.
    """

    origins: Sequence[Origin]
    eliminated: Mapping[int, str]


def map_kernels(file: Wiring, executed: Wiring) -> KernelMap:
    """Maps kernels to nodes. executed: the graph that the runtime saved, with its nodes in topological order."""
    same = _Tensors(file, executed).same
    cuts = _Cuts(file, executed, same)
    origins = []
    for i, node in enumerate(executed.nodes):
        # As a last resort, the names of the outputs identify the nodes, for example for a kernel that only passes on an
        # input.
        named = {file.producers[t] for t in node.outputs if t in file.producers}
        nodes = cuts.own[i] or cuts.nearest(i) or tuple(sorted(named))
        computing = tuple(n for n in nodes if file.nodes[n].op_type not in NO_OPS)
        inserted = not cuts.own[i] and any(t in same for t in node.outputs)
        origins.append(Origin(computing or nodes, inserted))
    mapped = {node for origin in origins for node in origin.nodes}
    missing = [i for i in range(len(file.nodes)) if i not in mapped]
    used = _used(file)
    why = {i: _why(file.nodes[i], i in used, file, executed) for i in missing}
    return KernelMap(origins, why)


class _Tensors:
    """Identifies the tensors of the executed graph in the file."""

    def __init__(self, file: Wiring, executed: Wiring) -> None:
        self._file = file
        self._executed = executed
        self.same = {name: name for name in executed.inputs}
        """Maps a tensor of the executed graph to the same tensor of the file."""
        ends = self._before_layout()
        computing = (node for node in executed.nodes if node.op_type not in _LAYOUT)
        self._named = {t for node in computing for t in self._by_name(node).values()}
        self._alike: dict[tuple[str, ...], list[WiredNode]] = {}
        for node in file.nodes:
            self._alike.setdefault(key(node.op_type, activations(node, file)), []).append(node)
        self._kept = {(node.name, node.op_type) for node in executed.nodes if node.name}
        integers = IntegerKernels(file)
        for node in executed.nodes:
            known = {i: ends[t] for i, t in enumerate(node.outputs) if t in ends}
            known = known or self._of_layout(node) or integers.made_by(node, self.same, executed)
            tensors = known or self._by_name(node) or self._by_structure(node)
            if not tensors and node.op_type == _CHANGED and node.inputs[0] in self.same:
                # This transposition exists only in the executed graph.
                tensors = known = {0: self.same[node.inputs[0]]}
            for position, theirs in tensors.items():
                tensor = node.outputs[position]
                if tensor != theirs and not known:
                    theirs = self._beyond(theirs, node, tensor)  # noqa: PLW2901
                self.same[tensor] = file.originals.get(theirs, theirs)

    def _before_layout(self) -> dict[str, str]:
        """Maps the input of a layout change to the file's tensor that is the output of the same layout change."""
        before: dict[str, str] = {}
        for node in reversed(self._executed.nodes):
            if node.op_type in _LAYOUT:
                source = before.get(node.outputs[0], node.outputs[0])
                if source in self._file.producers and node.inputs[0] not in self._file.producers:
                    before[node.inputs[0]] = source
        return before

    def _of_layout(self, node: WiredNode) -> dict[int, str]:
        if node.op_type not in _LAYOUT or node.outputs[0] in self._file.producers:
            return {}
        return {0: self.same[node.inputs[0]]} if node.inputs[0] in self.same else {}

    def _by_name(self, node: WiredNode) -> dict[int, str]:
        """Maps output positions to tensors of the file."""
        file = self._file
        tensors = {i: t for i, t in enumerate(node.outputs) if t in file.producers}
        fusion = _FUSION.fullmatch(node.name)
        if not tensors and fusion and (tensor := file.made_by_name.get(fusion[1])):
            return {0: tensor}
        for pattern in (_BLOCKED_WHOLE, _BLOCKED):
            blocked = pattern.fullmatch(node.name)
            if not tensors and blocked and blocked[1] in file.producers:
                return {0: blocked[1]}
        return tensors

    def _beyond(self, tensor: str, node: WiredNode, output: str) -> str:
        """If a kernel kept its name although the following sum and activation were fused into it, returns the last
        tensor that it computes.
        """
        file, executed = self._file, self._executed
        came_in = {self.same.get(t, t) for t in node.inputs}
        later = {executed.nodes[i].op_type for i in executed.consumers.get(output, ())}
        while True:
            takers = file.consumers.get(tensor, ())
            if len(takers) != 1:
                return tensor
            taker = file.nodes[takers[0]]
            others = set(activations(taker, file)) - {file.originals.get(tensor, tensor)}
            named = self._named & set(taker.outputs)
            is_end = taker.op_type in later or taker.op_type in QUANTISERS
            is_end = is_end or (taker.name, taker.op_type) in self._kept
            if is_end or not others <= came_in or named:
                return tensor
            tensor = taker.outputs[0]

    def _by_structure(self, node: WiredNode) -> dict[int, str]:
        """Returns the outputs of the file's node that runs the same operator on the same tensors. If several nodes
        match, the name must also be the same.
        """
        data = known_data(node, self.same, self._executed)
        nodes: Sequence[WiredNode] = self._alike.get(key(node.op_type, data), ()) if data else ()
        if len(nodes) > 1:
            nodes = [other for other in nodes if node.name and other.name == node.name]
        if len(nodes) != 1:
            return {}
        pairs = zip(node.outputs, nodes[0].outputs, strict=False)
        return {i: theirs for i, (ours, theirs) in enumerate(pairs) if ours and theirs}


class _Cuts:
    """Finds the nodes of the file between the known tensors of the executed graph."""

    def __init__(self, file: Wiring, executed: Wiring, same: Mapping[str, str]) -> None:
        self._file = file
        self._executed = executed
        self._same = same
        self._known = frozenset(same.values())
        self._makers = {i: _makers(node, executed) for i, node in enumerate(executed.nodes)}
        self._takers: dict[int, set[int]] = {i: set() for i in self._makers}
        for taker, makers in self._makers.items():
            for maker in makers:
                self._takers[maker].add(taker)
        self.own = self._not_before(self._common([self._cut(node) for node in executed.nodes]))
        """Cut of each executed node; empty if the node has no cut."""

    def _cut(self, node: WiredNode) -> tuple[int, ...]:
        """Returns a node's cut; empty if no output is known, or if every known output is also an input."""
        came_in = {self._same[t] for t in node.inputs if t in self._same}
        outputs = {self._same[t] for t in node.outputs if t in self._same} - came_in
        return tuple(sorted({i for tensor in outputs for i in self._behind(tensor)}))

    def _behind(self, tensor: str) -> Iterator[int]:
        """Yields the nodes that compute `tensor` from known tensors."""
        file = self._file
        waiting, seen = [tensor], {tensor}
        while waiting:
            tensor_of_cut = waiting.pop()
            if tensor_of_cut not in file.producers:
                continue
            yield file.producers[tensor_of_cut]
            for needed in file.nodes[file.producers[tensor_of_cut]].inputs:
                if not needed or needed in seen or needed in file.constants:
                    continue
                seen.add(needed)
                ends = {needed, file.originals.get(needed, needed)} & self._known
                if not ends and needed not in self._executed.initializers:
                    waiting.append(needed)

    def _common(self, cuts: list[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Returns `cuts`, followed by the cuts of kernels without a name. Such a cut contains the nodes that all readers of the kernel's
        output need.
        """
        for i in reversed(range(len(cuts))):
            if cuts[i] or any(t in self._same for t in self._executed.nodes[i].outputs):
                continue
            needed = [{*cuts[taker]} for taker in self._takers[i] if cuts[taker]]
            if len(needed) > 1:
                cuts[i] = tuple(sorted(set.intersection(*needed)))
        return cuts

    def _not_before(self, cuts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Returns each cut without the nodes that earlier kernels compute. If no node would remain, returns the whole
        cut.
        """
        # Each set of the file's nodes is a bit mask, because the file may have thousands of nodes.
        done: list[int] = []
        left = []
        for node, cut in enumerate(cuts):
            before = 0
            for i in self._makers[node]:
                before |= done[i] if i < len(done) else 0
            left.append(tuple(i for i in cut if not before >> i & 1) or cut)
            for i in cut:
                before |= 1 << i
            done.append(before)
        return left

    def nearest(self, index: int) -> tuple[int, ...]:
        """Returns the cut of the nearest kernels that read this kernel's output. If no such kernels exist, returns the
        cut of the nearest kernels before this kernel. A layout change of a result belongs to the kernel that computed
        the result.
        """
        ways = [self._takers, self._makers]
        if self._executed.nodes[index].op_type == "ReorderOutput":
            ways.reverse()
        return self._nearest(index, ways[0]) or self._nearest(index, ways[1])

    def _nearest(self, index: int, way: Mapping[int, set[int]]) -> tuple[int, ...]:
        nearest: set[int] = set()
        waiting, seen = [index], {index}
        while waiting:
            for other in way[waiting.pop()] - seen:
                seen.add(other)
                if self.own[other]:
                    nearest.update(self.own[other])
                else:
                    waiting.append(other)
        return tuple(sorted(nearest))


def _makers(node: WiredNode, wiring: Wiring) -> set[int]:
    """Returns the nodes whose outputs a node reads."""
    return {wiring.producers[t] for t in node.inputs if t in wiring.producers}


def _used(file: Wiring) -> set[int]:
    """Returns the nodes on which an output of the model depends."""
    used: set[int] = set()
    waiting = [file.producers[t] for t in file.outputs if t in file.producers]
    while waiting:
        index = waiting.pop()
        if index not in used:
            used.add(index)
            waiting += _makers(file.nodes[index], file)
    return used


def _why(node: WiredNode, used: bool, file: Wiring, executed: Wiring) -> str:
    if not used:
        return "no output depends on it"
    if node.op_type in NO_OPS:
        return "does nothing at inference"
    if all(t in file.constants for t in node.outputs):
        return "constant: computed once, when the model is loaded"
    if all(t in executed.initializers or not t for t in node.outputs):
        return "its result is known from the shapes: computed once, when the model is loaded"
    return "removed by the optimiser: no kernel needs it"
