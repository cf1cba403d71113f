"""Finds the nodes of a quantised file (QDQ) that a runtime's integer kernels compute."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.profiler import WiredNode, Wiring

# Suffix that ONNX Runtime adds to a node's name when a layout change replaces the node.
_TOKEN = re.compile(r"(.+?)(?:_token_\d+)+")
_TO_UNSIGNED = "qdq_s8_to_u8_quant"
_INTEGER = re.compile(r"(?:QLinear|Nhwc|Q(?=Gemm))(.+)")
_ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu", "Sigmoid"})
_QUANTISE, _DEQUANTISE = QUANTISERS = ("QuantizeLinear", "DequantizeLinear")


def key(op_type: str, data: Iterable[str]) -> tuple[str, ...]:
    """Returns a key that is equal for nodes of the same operator on the same tensors."""
    return (op_type, *data)


def activations(node: WiredNode, file: Wiring) -> Iterator[str]:
    """Returns the tensors that a node reads, without constants."""
    return (file.originals.get(t, t) for t in node.inputs if t and t not in file.constants)


def known_data(node: WiredNode, same: Mapping[str, str], executed: Wiring) -> list[str]:
    """Returns the file's tensors that an executed node reads, without constants. Returns [] if any tensor is unknown."""
    data = [same.get(t, "") for t in node.inputs if t and t not in executed.constants]
    return [] if "" in data else data


def _file_name(node: WiredNode) -> str:
    """Returns the name of the file's node after which an executed node is named."""
    token = _TOKEN.fullmatch(node.name)
    return token[1] if token else node.name


class IntegerKernels:
    """Integer kernels; each kernel computes an operator and the quantisation around the operator (QDQ). ONNX Runtime
    renames the outputs of these kernels. If ONNX Runtime changes the layout, the new name contains the name of a node.
    If ONNX Runtime makes signed integers unsigned, the new name begins with _TO_UNSIGNED.
    """

    def __init__(self, file: Wiring) -> None:
        self._file = file
        self._nodes: dict[tuple[str, ...], list[WiredNode]] = {}
        self._named: dict[tuple[str, ...], list[WiredNode]] = {}
        for node in file.nodes:
            data = [self._before(tensor) for tensor in activations(node, file)]
            self._nodes.setdefault(key(node.op_type, data), []).append(node)
            self._named.setdefault((node.op_type, node.name), []).append(node)

    def made_by(self, node: WiredNode, same: Mapping[str, str], executed: Wiring) -> dict[int, str]:
        """Maps output positions to quantised tensors of the file."""
        data = known_data(node, same, executed)
        op_type = self._operator(node, data)
        if not op_type:
            return {}
        nodes: Sequence[WiredNode] = self._nodes.get(key(op_type, data), ()) if data else ()
        if len(nodes) > 1:
            nodes = self._distinguished(node, nodes)
        nodes = nodes or self._named.get((op_type, _file_name(node)), ())
        return {0: self._after(nodes[0].outputs[0])} if len(nodes) == 1 else {}

    def _operator(self, node: WiredNode, data: Sequence[str]) -> str:
        """Returns the file's operator that an integer kernel computes; "" for other kernels."""
        if op := _INTEGER.fullmatch(node.op_type):
            return op[1]
        producers = self._file.producers
        if node.op_type == _DEQUANTISE or any(t in producers for t in node.outputs):
            return ""
        makers = (self._file.nodes[producers[t]].op_type for t in data if t in producers)
        is_renamed = node.outputs[0].startswith(_TO_UNSIGNED)
        is_integer = is_renamed or node.op_type == _QUANTISE or _QUANTISE in makers
        return node.op_type if is_integer else ""

    def _distinguished(self, node: WiredNode, nodes: Sequence[WiredNode]) -> Sequence[WiredNode]:
        """Selects nodes by the names of their weights if these names are unchanged, otherwise by the node name."""
        weights = [{self._before(t) for t in other.inputs} & {*node.inputs} for other in nodes]
        most = max(map(len, weights))
        by_weights = [o for o, w in zip(nodes, weights, strict=True) if len(w) == most]
        if len(by_weights) == 1:
            return by_weights
        name = _file_name(node)
        return [other for other in nodes if name and other.name == name]

    def _before(self, tensor: str) -> str:
        """Returns the quantised tensor from which a dequantised tensor is computed, or `tensor` itself if it is not a
        dequantised tensor.
        """
        file = self._file
        index = file.producers.get(tensor)
        if index is None or file.nodes[index].op_type != _DEQUANTISE:
            return tensor
        quantised = file.nodes[index].inputs[0]
        return file.originals.get(quantised, quantised)

    def _after(self, tensor: str) -> str:
        """Returns the quantised tensor that is computed from `tensor` or from the activation of `tensor`.

        If no such tensor exists, returns the output of the last activation, or `tensor` itself if no activation
        follows.
        """
        file = self._file
        while True:
            takers = [file.nodes[i] for i in file.consumers.get(tensor, ())]
            quantisers = [node for node in takers if node.op_type == _QUANTISE]
            if quantisers or len(takers) != 1 or takers[0].op_type not in _ACTIVATIONS:
                return quantisers[0].outputs[0] if quantisers else tensor
            tensor = takers[0].outputs[0]
