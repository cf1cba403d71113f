"""Finds structures that several models share: chains of operators, and blocks with branches."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

Content = Mapping[str, Any]

_CHAIN = 3
"""Number of operators in a chain."""


class Chain(NamedTuple):
    """A chain of operators.

    operators: each operator reads the output of the previous one. times: number of occurrences in all models. models:
    number of models that contain the chain.
    """

    operators: tuple[str, ...]
    times: int
    models: int


def chains(content: Content) -> list[Chain]:
    """Returns chains of operators without branches, the most frequent first."""
    count: Counter[tuple[str, ...]] = Counter()
    models: Counter[tuple[str, ...]] = Counter()
    for model in content["models"].values():
        own = Counter(_paths(model["op_types"], model["readers"]))
        count += own
        models.update(own.keys())
    return [Chain(ops, n, models[ops]) for ops, n in count.most_common()]


def _paths(op_types: Sequence[str], readers: Sequence[Sequence[int]]) -> Iterator[tuple[str, ...]]:
    for first in range(len(op_types)):
        path = [first]
        while len(path) < _CHAIN and len(readers[path[-1]]) == 1:
            path += readers[path[-1]]
        if len(path) == _CHAIN:
            yield tuple(op_types[i] for i in path)


class Block(NamedTuple):
    """The layers between two dominators, which are tensors through which all data passes.
    operators: the operators in order. times: number of occurrences in all models. models: the models that contain the
    block.
    """

    operators: tuple[str, ...]
    times: int
    models: tuple[str, ...]


def blocks(content: Content) -> list[Block]:
    """Returns blocks with branches that occur more than once, sorted by their total number of layers."""
    count: Counter[Any] = Counter()
    models: dict[Any, dict[str, None]] = {}
    for name, model in content["models"].items():
        for block in _between_dominators(model["readers"]):
            first = block.start
            inner = tuple(
                tuple(r - first for r in model["readers"][i] if r in block) for i in block
            )
            key = (tuple(model["op_types"][i] for i in block), inner)
            count[key] += 1
            models.setdefault(key, {})[name] = None
    repeated = [Block(key[0], n, tuple(models[key])) for key, n in count.items() if n > 1]
    return sorted(repeated, key=lambda b: b.times * len(b.operators), reverse=True)


def _between_dominators(readers: Sequence[Sequence[int]]) -> Iterator[range]:
    """Yields the ranges between neighbouring dominators that contain more than one layer. readers: readers of each
    layer's output, in topological order.
    """
    last = [max(own, default=i) for i, own in enumerate(readers)]
    begin, open_until = 0, 0
    for i in range(len(readers)):
        if open_until <= i:  # no layer after i reads the output of a layer before i
            if i > begin:
                yield range(begin, i + 1)
            begin = i + 1
        open_until = max(open_until, last[i])
