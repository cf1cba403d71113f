"""Where ONNX Runtime converts layouts at the ends of a brick, and how long that takes."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

_OWN_LAYOUT = (
    *("AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool"),
    *("Resize", "Transpose", "Upsample"),
)
"""Operators that ONNX Runtime has kernels for in a layout of its own (NCHWc)."""

_EITHER_LAYOUT = ("Add", "Concat", "Relu", "Sigmoid", "Sum", "Tanh")
"""Operators that it computes in the layout in which their inputs are.

Source of both: microsoft/onnxruntime, core/optimizer/nchwc_transformer.cc.
"""


class Reorders(NamedTuple):
    """How long ONNX Runtime converts the layout at each input and output of a brick, ns, the least
    of several runs; 0 where it does not; None where nothing but layers that take either layout
    (sums, concatenations) lies between the end and the rest, so that it depends on the neighbour.
    """

    inputs_ns: tuple[int | None, ...]
    outputs_ns: tuple[int | None, ...]


def never_converts(operators: Sequence[str]) -> bool:
    """Whether a brick of these is computed in the plain layout, whatever stands around it."""
    kinds = set(operators)
    return not kinds & set(_OWN_LAYOUT) and not kinds <= set(_EITHER_LAYOUT)


def reorders(
    optimized: Path, profile: Path, inputs: Sequence[str], outputs: Sequence[str]
) -> Reorders:
    """optimized, profile: as ONNX Runtime wrote them for a brick. inputs, outputs: names in it."""
    events = json.loads(profile.read_text(encoding="utf-8"))
    layout = _Layout(optimized, _least_ns(events))
    return Reorders(tuple(map(layout.at_input, inputs)), tuple(map(layout.at_output, outputs)))


class _Layout:
    """Layout conversions in an optimized model. least_ns: of each node's kernel."""

    def __init__(self, optimized: Path, least_ns: Mapping[str, int]) -> None:
        import onnx

        graph = onnx.load(str(optimized), load_external_data=False).graph
        self._least_ns = least_ns
        self._maker = {name: node for node in graph.node for name in node.output}
        self._nodes = graph.node
        self._inputs = {i.name for i in graph.input}

    def at_input(self, name: str) -> int | None:
        readers = [node for node in self._nodes if name in node.input]
        if readers and all(node.op_type in _EITHER_LAYOUT for node in readers):
            return None
        return sum(self._least_ns.get(n.name, 0) for n in readers if n.op_type == "ReorderInput")

    def at_output(self, name: str) -> int | None:
        """Also of conversions that only such layers as take either layout separate from the end."""
        todo, found, is_plain = [name], list[int](), False
        while todo:
            node = self._maker.get(todo.pop())
            if node is None:
                continue
            if node.op_type == "ReorderOutput":
                found.append(self._least_ns.get(node.name, 0))
            elif node.op_type in _EITHER_LAYOUT:
                todo += node.input
            else:
                is_plain = True
        return sum(found) if found or is_plain else None


def _least_ns(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Node -> its kernel's shortest run."""
    found: dict[str, int] = {}
    for event in events:
        name = str(event.get("name", ""))
        if event.get("cat") == "Node" and name.endswith("_kernel_time"):
            node, took_ns = name.removesuffix("_kernel_time"), int(event["dur"]) * 1000
            found[node] = min(took_ns, found.get(node, took_ns))
    return found
