"""Finds the layout conversions that ONNX Runtime makes at the ends of a brick, and the times of these conversions."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.explain.bricks.cut.cutting import EITHER_LAYOUT
from harness.explain.kernels.ort_events import KERNEL, NS_PER_US, Event

_OWN_LAYOUT = (
    "AveragePool", "BatchNormalization", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool",
    "Resize", "Transpose", "Upsample",
)  # fmt: skip
"""Operators for which ONNX Runtime has kernels in its NCHWc layout."""


_CONVERSIONS = ("ReorderInput", "ReorderOutput")
_INTEGER_CONVERSION = "Transpose"
"""Operator that ONNX Runtime inserts before and after integer convolutions, because it computes them in NHWC."""


class Reorders(NamedTuple):
    """Time in ns of the layout conversion at each input and output of a brick: the shortest of several runs, or 0 if no
    conversion takes place. None if the neighbouring layer determines whether a conversion is needed, which is the case
    if only layers that accept both layouts (sums, concatenations) are at that end.
    """

    inputs_ns: tuple[int | None, ...]
    outputs_ns: tuple[int | None, ...]
    inside: tuple[tuple[tuple[int, ...], int], ...] = ()
    """Positions of inputs, and the time in ns of the conversions around layers that accept both layouts and read these
    inputs unconverted. These conversions disappear if the inputs are in ONNX Runtime's internal layout.
    """


def never_converts(operators: Sequence[str]) -> bool:
    """Whether a brick of these operators always runs in the plain layout, regardless of the neighbouring layers."""
    kinds = set(operators)
    return not kinds & set(_OWN_LAYOUT) and not kinds <= set(EITHER_LAYOUT)


def reorders(
    optimised: Path,
    events: Sequence[Event],
    inputs: Sequence[str],
    outputs: Sequence[str],
    layers: Sequence[str] = (),
) -> Reorders:
    """Finds the conversions. optimised: the brick as ONNX Runtime executes it. events: from ONNX Runtime's profiler.
    inputs, outputs: tensor names in the brick.
    layers: the brick's operators. A Transpose that is not among these operators is a conversion.
    """
    is_inserted = _INTEGER_CONVERSION not in layers
    kinds = (*_CONVERSIONS, *([_INTEGER_CONVERSION] if is_inserted else []))
    layout = _Layout(optimised, _least_ns(events), kinds)
    return Reorders(
        tuple(map(layout.at_input, inputs)),
        tuple(map(layout.at_output, outputs)),
        tuple(layout.inside(inputs)),
    )


class _Layout:
    """Layout conversions in an optimised model.

    least_ns: shortest time of each node's kernel. kinds: operators that convert.
    """

    def __init__(self, optimised: Path, least_ns: Mapping[str, int], kinds: Sequence[str]) -> None:
        import onnx

        graph = onnx.load(str(optimised), load_external_data=False).graph
        self._least_ns = least_ns
        self._kinds = kinds
        self._outputs = {o.name for o in graph.output}
        self._maker = {name: node for node in graph.node for name in node.output}
        self._nodes = graph.node
        self._inputs = {i.name for i in graph.input}

    def at_input(self, name: str) -> int | None:
        readers = self._readers(name)
        if readers and all(node.op_type in EITHER_LAYOUT for node in readers):
            return None
        return self._conversions_ns(readers)

    def inside(self, inputs: Sequence[str]) -> Iterator[tuple[tuple[int, ...], int]]:
        """Yields the entries of Reorders.inside."""
        left = [i for i, name in enumerate(inputs) if self.at_input(name) is None]
        while left:
            region = self._region(inputs[left[0]])
            names = {name for node in region for name in node.input}
            ends = tuple(i for i in left if inputs[i] in names)
            yield ends, self._conversions_ns(self._around(region))
            left = [i for i in left if inputs[i] not in names]

    def _region(self, name: str) -> list[Any]:
        """Returns the connected layers that accept both layouts, beginning with the readers of `name`."""
        nodes, todo = list[Any](), self._readers(name)
        while todo:
            node = todo.pop()
            if node not in nodes and node.op_type in EITHER_LAYOUT:
                nodes.append(node)
                todo += [*self._makers(node), *self._readers(*node.output)]
        return nodes

    def _around(self, region: Sequence[Any]) -> Iterator[Any]:
        """Yields the nodes next to the region's layers, except at the brick's ends."""
        for node in region:
            before, after = self._makers(node), self._readers(*node.output)
            yield from (n for n in before if n.input and n.input[0] not in self._inputs)
            yield from (n for n in after if n.output[0] not in self._outputs)

    def _conversions_ns(self, nodes: Iterable[Any]) -> int:
        return sum(self._least_ns.get(n.name, 0) for n in nodes if n.op_type in self._kinds)

    def _makers(self, node: Any) -> list[Any]:
        return [self._maker[name] for name in node.input if name in self._maker]

    def _readers(self, *names: str) -> list[Any]:
        return [node for name in names for node in self._nodes if name in node.input]

    def at_output(self, name: str) -> int | None:
        """Returns the time of conversions at an output. Only layers that accept both layouts may lie between a
        conversion and the output.
        """
        todo, conversions_ns, is_plain = [name], list[int](), False
        while todo:
            node = self._maker.get(todo.pop())
            if node is None:
                continue
            if node.op_type in self._kinds:
                conversions_ns.append(self._least_ns.get(node.name, 0))
            elif node.op_type in EITHER_LAYOUT:
                todo += node.input
            else:
                is_plain = True
        return sum(conversions_ns) if conversions_ns or is_plain else None


def _least_ns(events: Sequence[Event]) -> dict[str, int]:
    """Returns the shortest time of each node's kernel."""
    least_ns: dict[str, int] = {}
    for event in events:
        node = event["name"].removesuffix(KERNEL)
        if event.get("cat") == "Node" and node != event["name"]:
            took_ns = event["dur"] * NS_PER_US
            least_ns[node] = min(took_ns, least_ns.get(node, took_ns))
    return least_ns
