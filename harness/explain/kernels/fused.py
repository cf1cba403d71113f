"""Maps each kernel to the nodes of the model's own file that it computes after fusion.

The runtime saves the graph that it executes. Most of its tensors keep the names they have in the
file, or a kernel is called after the tensor that it makes; then the kernel stands for the nodes
between its inputs and its output: a cut of the file's graph. A kernel whose output is no tensor of
the file shares the cut of the kernels that take it. So each kernel stands for at least one node.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.explain.kernels.fused_integers import IntegerKernels, activations, key, known_data
from harness.profiler import NO_OPS, WiredNode, Wiring

# ONNX Runtime names the kernels of its blocked layout after the tensor that they make; those it
# turns into a convolution say what they were.
_BLOCKED = re.compile(r"(.+?)(?:_bn|_mul)?_nchwc(?:_token_\d+|_\d+)?")
_BLOCKED_WHOLE = re.compile(r"(.+)_nchwc(?:_token_\d+|_\d+)?")
_LAYOUT = frozenset({"ReorderInput", "ReorderOutput"})
# What its fusions add to the name of the last node that they replace.
_FUSION = re.compile(r"(.+)/\w+Fusion/")
_CHANGED = "Transpose"


class Origin(NamedTuple):
    """nodes: indices in the file, ascending, never empty.
    inserted: the kernel computes nothing of the file; it only copies or changes the layout for
    these nodes.
    """

    nodes: tuple[int, ...]
    inserted: bool


@dataclass(frozen=True, slots=True)
class KernelMap:
    """Each node of the file is in exactly one of the two.
    origins: one for each executed node, in order.
    eliminated: node of the file -> why it has no kernel.
    """

    origins: Sequence[Origin]
    eliminated: Mapping[int, str]


def map_kernels(file: Wiring, executed: Wiring) -> KernelMap:
    """executed: the graph as the runtime saved it, its nodes in topological order."""
    same = _equivalents(file, executed)
    cuts = _Cuts(file, frozenset(same.values()), executed.initializers)
    own = [_own_cut(node, same, cuts) for node in executed.nodes]
    own = _not_before(executed, _common(executed, own, same))
    near = _Neighbours(executed, own)
    origins = []
    for i, node in enumerate(executed.nodes):
        nodes = own[i] or near.cut(i) or _named(node, file)
        inserted = not own[i] and any(t in same for t in node.outputs)
        origins.append(Origin(_without_no_ops(file, nodes), inserted))
    mapped = {node for origin in origins for node in origin.nodes}
    missing = [i for i in range(len(file.nodes)) if i not in mapped]
    used = _used(file)
    why = {i: _why(file.nodes[i], i in used, file, executed) for i in missing}
    return KernelMap(origins, why)


def _equivalents(file: Wiring, executed: Wiring) -> dict[str, str]:
    """Tensor of the executed graph -> the same tensor of the file, where it can be identified."""
    same = {name: name for name in executed.inputs}
    ends = _before_layout(file, executed)
    computing = (node for node in executed.nodes if node.op_type not in _LAYOUT)
    named = {t for node in computing for t in _by_name(node, file).values()}
    alike: dict[tuple[str, ...], list[WiredNode]] = {}
    for node in file.nodes:
        alike.setdefault(key(node.op_type, activations(node, file)), []).append(node)
    integers = IntegerKernels(file)
    for node in executed.nodes:
        known = {i: ends[t] for i, t in enumerate(node.outputs) if t in ends}
        known = known or _of_layout(node, same, file) or integers.made_by(node, same, executed)
        tensors = known or _by_name(node, file) or _by_structure(node, alike, same, executed)
        if not tensors and node.op_type == _CHANGED and node.inputs[0] in same:
            tensors = known = {0: same[node.inputs[0]]}  # the file has no such transposition
        for position, theirs in tensors.items():
            tensor = node.outputs[position]
            if tensor != theirs and not known:
                theirs = _beyond(theirs, node, tensor, named, same, file, executed)  # noqa: PLW2901
            same[tensor] = file.originals.get(theirs, theirs)
    return same


def _before_layout(file: Wiring, executed: Wiring) -> dict[str, str]:
    """The input of a layout change stands for the file's tensor that the change outputs."""
    before: dict[str, str] = {}
    for node in reversed(executed.nodes):
        if node.op_type in _LAYOUT:
            source = before.get(node.outputs[0], node.outputs[0])
            if source in file.producers and node.inputs[0] not in file.producers:
                before[node.inputs[0]] = source
    return before


def _of_layout(node: WiredNode, same: Mapping[str, str], file: Wiring) -> dict[int, str]:
    if node.op_type not in _LAYOUT or node.outputs[0] in file.producers:
        return {}
    return {0: same[node.inputs[0]]} if node.inputs[0] in same else {}


def _by_name(node: WiredNode, file: Wiring) -> dict[int, str]:
    """Output position -> tensor of the file."""
    tensors = {i: t for i, t in enumerate(node.outputs) if t in file.producers}
    fusion = _FUSION.fullmatch(node.name)
    if not tensors and fusion and (tensor := file.made_by_name.get(fusion[1])):
        return {0: tensor}
    for pattern in (_BLOCKED_WHOLE, _BLOCKED):
        blocked = pattern.fullmatch(node.name)
        if not tensors and blocked and blocked[1] in file.producers:
            return {0: blocked[1]}
    return tensors


def _beyond(
    tensor: str,
    node: WiredNode,
    output: str,
    named: set[str],
    same: Mapping[str, str],
    file: Wiring,
    executed: Wiring,
) -> str:
    """A kernel that absorbed the sum and the activation after it kept its original name."""
    came_in = {same.get(t, t) for t in node.inputs}
    later = {executed.nodes[i].op_type for i in executed.consumers.get(output, ())}
    while True:
        takers = file.consumers.get(tensor, ())
        if len(takers) != 1:
            return tensor
        taker = file.nodes[takers[0]]
        others = set(activations(taker, file)) - {file.originals.get(tensor, tensor)}
        if taker.op_type in later or not others <= came_in or named & set(taker.outputs):
            return tensor
        tensor = taker.outputs[0]


def _by_structure(
    node: WiredNode,
    alike: Mapping[tuple[str, ...], Sequence[WiredNode]],
    same: Mapping[str, str],
    executed: Wiring,
) -> dict[int, str]:
    """The file's node with the same operator and tensors; of several, the one of the same name."""
    data = known_data(node, same, executed)
    if not data:
        return {}
    nodes = alike.get(key(node.op_type, data), ())
    if len(nodes) > 1:
        nodes = [other for other in nodes if node.name and other.name == node.name]
    if len(nodes) != 1:
        return {}
    pairs = zip(node.outputs, nodes[0].outputs, strict=False)
    return {i: theirs for i, (ours, theirs) in enumerate(pairs) if ours and theirs}


class _Cuts:
    """known: tensors of the file that are also in the executed graph; each cut ends there."""

    def __init__(self, file: Wiring, known: frozenset[str], folded: frozenset[str]) -> None:
        self._file = file
        self._known = known
        self._folded = folded

    def behind(self, tensor: str) -> Iterator[int]:
        """The nodes that compute `tensor` from known ones."""
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
                if not ends and needed not in self._folded:
                    waiting.append(needed)


def _own_cut(node: WiredNode, same: Mapping[str, str], cuts: _Cuts) -> tuple[int, ...]:
    """Empty where no output is known, or all outputs are inputs."""
    came_in = {same[t] for t in node.inputs if t in same}
    outputs = {same[t] for t in node.outputs if t in same} - came_in
    return tuple(sorted({i for tensor in outputs for i in cuts.behind(tensor)}))


def _common(
    executed: Wiring, cuts: Sequence[tuple[int, ...]], same: Mapping[str, str]
) -> list[tuple[int, ...]]:
    """The cut of a nameless kernel: the nodes that several kernels need of its output."""
    joined = list(cuts)
    for i in reversed(range(len(joined))):
        node = executed.nodes[i]
        if joined[i] or any(t in same for t in node.outputs):
            continue
        takers = {j for t in node.outputs for j in executed.consumers.get(t, ())}
        needed = [{*joined[j]} for j in takers if joined[j]]
        if len(needed) > 1:
            joined[i] = tuple(sorted(set.intersection(*needed)))
    return joined


def _not_before(executed: Wiring, cuts: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Each cut without the nodes that earlier kernels compute; whole where nothing would remain."""
    done: list[int] = []  # by executed node, a bit for each of the file's: there may be thousands
    left = []
    for node, cut in zip(executed.nodes, cuts, strict=True):
        before = 0
        for i in _makers(node, executed):
            before |= done[i] if i < len(done) else 0
        left.append(tuple(i for i in cut if not before >> i & 1) or cut)
        for i in cut:
            before |= 1 << i
        done.append(before)
    return left


def _named(node: WiredNode, file: Wiring) -> tuple[int, ...]:
    """By the names of its outputs alone: a kernel that passes on an input of the model."""
    return tuple(sorted({file.producers[t] for t in node.outputs if t in file.producers}))


class _Neighbours:
    """own: the cut of each executed node; empty where it has none."""

    def __init__(self, executed: Wiring, own: Sequence[tuple[int, ...]]) -> None:
        self._own = own
        self._executed = executed
        self._takers: dict[int, set[int]] = {i: set() for i in range(len(own))}
        self._makers = {i: _makers(node, executed) for i, node in enumerate(executed.nodes)}
        for taker, makers in self._makers.items():
            for maker in makers:
                self._takers[maker].add(taker)

    def cut(self, index: int) -> tuple[int, ...]:
        """The cut of the nearest kernels that read this one's output; else of those it reads from.
        A layout change of a result belongs to the kernel that computed it.
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
                if self._own[other]:
                    nearest.update(self._own[other])
                else:
                    waiting.append(other)
        return tuple(sorted(nearest))


def _without_no_ops(file: Wiring, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """The nodes without no-ops, unless nothing else is left."""
    return tuple(i for i in nodes if file.nodes[i].op_type not in NO_OPS) or nodes


def _makers(node: WiredNode, wiring: Wiring) -> set[int]:
    """The nodes from which a node reads."""
    return {wiring.producers[t] for t in node.inputs if t in wiring.producers}


def _used(file: Wiring) -> set[int]:
    """Nodes on which an output of the model depends."""
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
