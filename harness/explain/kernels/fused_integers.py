"""Finds the nodes of a quantised file (QDQ) that a runtime's integer kernels stand for."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.profiler import WiredNode, Wiring

# What ONNX Runtime's changes of layout add to the name of a node they replace.
_TOKEN = re.compile(r"(.+?)(?:_token_\d+)+")
_INTEGER = re.compile(r"(?:QLinear|Nhwc|Q(?=Gemm))(.+)")
_ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid"})


def key(op_type: str, data: Iterable[str]) -> tuple[str, ...]:
    """Equal for nodes of one operator on the same tensors."""
    return (op_type, *data)


def activations(node: WiredNode, file: Wiring) -> Iterator[str]:
    """The tensors that a node reads, without constants."""
    return (file.originals.get(t, t) for t in node.inputs if t and t not in file.constants)


def known_data(node: WiredNode, same: Mapping[str, str], executed: Wiring) -> list[str]:
    """The file's tensors that an executed node reads, without constants; [] where one is unknown."""
    data = [same.get(t, "") for t in node.inputs if t and t not in executed.constants]
    return [] if "" in data else data


class IntegerKernels:
    """Integer kernels, each of which stands for an operator and the quantisation around it (QDQ).
    ONNX Runtime changes their layout and then names their output after a node, no longer after a
    tensor of the file.
    """

    def __init__(self, file: Wiring) -> None:
        self._file = file
        self._nodes: dict[tuple[str, ...], list[WiredNode]] = {}
        for node in file.nodes:
            data = [self._before(tensor) for tensor in activations(node, file)]
            self._nodes.setdefault(key(node.op_type, data), []).append(node)

    def made_by(self, node: WiredNode, same: Mapping[str, str], executed: Wiring) -> dict[int, str]:
        """Output position -> quantised tensor of the file."""
        op = _INTEGER.fullmatch(node.op_type)
        data = known_data(node, same, executed)
        if op is None or not data:
            return {}
        nodes: Sequence[WiredNode] = self._nodes.get(key(op[1], data), ())
        if len(nodes) > 1:
            nodes = self._distinguished(node, nodes)
        return {0: self._after(nodes[0].outputs[0])} if len(nodes) == 1 else {}

    def _distinguished(self, node: WiredNode, nodes: Sequence[WiredNode]) -> Sequence[WiredNode]:
        """By the weights, where these kept their names, else by the node's own name."""
        weights = [{self._before(t) for t in other.inputs} & {*node.inputs} for other in nodes]
        most = max(map(len, weights))
        by_weights = [o for o, w in zip(nodes, weights, strict=True) if len(w) == most]
        if len(by_weights) == 1:
            return by_weights
        token = _TOKEN.fullmatch(node.name)
        name = token[1] if token else node.name
        return [other for other in nodes if name and other.name == name]

    def _before(self, tensor: str) -> str:
        """The quantised tensor from which a dequantised one is computed; else the tensor itself."""
        file = self._file
        index = file.producers.get(tensor)
        if index is None or file.nodes[index].op_type != "DequantizeLinear":
            return tensor
        quantised = file.nodes[index].inputs[0]
        return file.originals.get(quantised, quantised)

    def _after(self, tensor: str) -> str:
        """The quantised tensor computed from this one and its activation; without one, the last tensor."""
        file = self._file
        while True:
            takers = [file.nodes[i] for i in file.consumers.get(tensor, ())]
            quantisers = [node for node in takers if node.op_type == "QuantizeLinear"]
            if quantisers or len(takers) != 1 or takers[0].op_type not in _ACTIVATIONS:
                return quantisers[0].outputs[0] if quantisers else tensor
            tensor = takers[0].outputs[0]
