"""Traces the numbers in a model's inputs to the tables whose rows these numbers select."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.types import Table


class Copy(NamedTuple):
    """A path on which the numbers in one tensor reach another tensor."""

    source: str
    target: str
    is_exact: bool
    """False if arithmetic changes the numbers."""


class Lookup(NamedTuple):
    """An operation that selects rows of a table."""

    indices: str
    """The tensor that contains the row numbers."""
    operator: str
    rows: int | None
    """Number of rows in the table; None or less than 1 if the file does not contain this number."""


class Operation(NamedTuple):
    kind: str
    """Name of the operator, or '' if it is unknown."""
    inputs: Sequence[str]
    """Names of the tensors by position, or '' for an input that is omitted or is not a tensor."""
    outputs: Sequence[str]


class Operators(NamedTuple):
    """The operators of a file format that pass on the numbers in their inputs."""

    first: frozenset[str]
    """Operators that move or select the numbers of their first input."""
    several: Mapping[str, Sequence[int]]
    """Maps an operator to the positions of the inputs whose numbers the operator moves, or to () for all inputs."""
    arithmetic: frozenset[str]
    """Operators that compute different numbers from all their inputs."""
    choice: Sequence[str]
    """Operators whose first input selects between the second and the third."""
    less: str
    add: str

    def copies(self, operations: Sequence[Operation]) -> Iterator[Copy]:
        makers = {name: one for one in operations for name in one.outputs if name}
        for operation in operations:
            exact = operation.kind not in self.arithmetic
            for source in self._passed_on(operation, makers):
                yield from (Copy(source, target, exact) for target in operation.outputs if target)

    def _passed_on(self, operation: Operation, makers: Mapping[str, Operation]) -> Iterator[str]:
        """Yields the inputs whose numbers reach the outputs."""
        kind, inputs, _ = operation
        positions: Sequence[int] = ()
        if kind in self.choice:
            positions = (2,) if self._counts_from_end(inputs, makers) else (1, 2)
        elif kind in self.first:
            positions = (0,)
        elif kind in self.arithmetic or kind in self.several:
            positions = self.several.get(kind) or range(len(inputs))
        return (inputs[p] for p in positions if p < len(inputs) and inputs[p])

    def _counts_from_end(self, inputs: Sequence[str], makers: Mapping[str, Operation]) -> bool:
        """Returns whether the operation is `x + rows if x < 0 else x`, which exporters insert before a table."""
        if len(inputs) != 3 or inputs[0] not in makers or inputs[1] not in makers:
            return False
        condition, added, x = makers[inputs[0]], makers[inputs[1]], inputs[2]
        is_less = condition.kind == self.less and condition.inputs[:1] == [x]
        return is_less and added.kind == self.add and x in added.inputs


class Flow(NamedTuple):
    """The paths from inputs to tables in a file."""

    inputs: Mapping[str, str]
    """Maps an input's name to its tensor."""
    copies: Iterable[Copy]
    lookups: Iterable[Lookup]


def smallest_tables(flow: Flow) -> dict[str, Table]:
    """Returns the smallest table for each input that selects rows.

    Omits an input if one of its tables is unknown, or if arithmetic changes the row numbers, because the range of valid
    numbers is then unknown.
    """
    copies: defaultdict[str, list[Copy]] = defaultdict(list)
    for copy in flow.copies:
        copies[copy.source].append(copy)
    lookups: defaultdict[str, list[Lookup]] = defaultdict(list)
    for lookup in flow.lookups:
        lookups[lookup.indices].append(lookup)
    tables = {}
    for name, tensor in flow.inputs.items():
        found = [(one, exact) for at, exact in _reached(tensor, copies) for one in lookups[at]]
        known = [
            Table(one.operator, one.rows)
            for one, exact in found
            if exact and one.rows is not None and one.rows > 0
        ]
        if known and len(known) == len(found):
            tables[name] = min(known, key=lambda table: table.rows)
    return tables


def _reached(tensor: str, copies: Mapping[str, Sequence[Copy]]) -> set[tuple[str, bool]]:
    """Returns (tensor, whether the numbers reach the tensor unchanged), without duplicates."""
    reached = {(tensor, True)}
    waiting = [(tensor, True)]
    while waiting:
        at, exact = waiting.pop()
        for copy in copies.get(at, ()):
            place = (copy.target, exact and copy.is_exact)
            if place not in reached:
                reached.add(place)
                waiting.append(place)
    return reached
