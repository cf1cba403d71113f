"""Whether two files are the same network: by the sizes of their weights, the strides of their
convolutions and how many multiplications a sample takes, which no conversion between frameworks or
precisions changes.

A name says little: published files of one name differ in layers. Layouts, fused normalisations and
number types do change from framework to framework, so none of them is looked at.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

SAME_MACS = 0.001
"""Share: within it, what a conversion folds or adds at the edges."""


class Structure(NamedTuple):
    """weights: elements of each weight of two dimensions or more (those of 1 not counted), sorted.
    types: of these weights. strides: of each convolution that moves on by more than 1, without the
    1s, sorted. macs: multiplications of one sample in convolutions and matrix products. None where the
    file does not tell.
    """

    weights: tuple[int, ...]
    types: tuple[str, ...]
    strides: tuple[tuple[int, ...], ...] | None = None
    macs: int | None = None

    def __str__(self) -> str:
        told = f"{len(self.weights)} weight tensors with {sum(self.weights):,} weights"
        return told if self.macs is None else f"{told}, {_macs(self.macs)} a sample"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "Structure":
        strides = values["strides"]
        return cls(
            tuple(values["weights"]),
            tuple(values["types"]),
            None if strides is None else tuple(map(tuple, strides)),
            values.get("macs"),
        )


def difference(ours: Structure, theirs: Structure) -> str:
    """In words; '' where they are the same network as far as both files tell.

    As many weights in other tensors, with as many multiplications, are the same ones: frameworks
    split the weights of groups and gates.
    """
    known = None not in (ours.macs, theirs.macs)
    same_macs = known and abs((ours.macs or 0) - (theirs.macs or 0)) <= SAME_MACS * (ours.macs or 0)
    if ours.weights == theirs.weights:
        if None not in (ours.strides, theirs.strides) and ours.strides != theirs.strides:
            return f"strides of convolutions {theirs.strides}, not {ours.strides}"
    elif sum(ours.weights) != sum(theirs.weights) or not same_macs:
        more, less = Counter(theirs.weights), Counter(ours.weights)
        changed = sum((more - less).values()) + sum((less - more).values())
        return f"{theirs}, not {ours} ({changed} tensors differ in size)"
    if known and not same_macs:
        return f"{_macs(theirs.macs or 0)} a sample, not {_macs(ours.macs or 0)}"
    return ""


def of_shapes(
    shapes: Iterable[tuple[Sequence[int], str]],
    strides: Iterable[Sequence[int]] | None = None,
    macs: int | None = None,
) -> Structure:
    """shapes: of all weights, with their types. strides: of all convolutions."""
    large = [(shape, kind) for shape, kind in shapes if sum(size != 1 for size in shape) > 1]
    sizes = tuple(sorted(prod(shape) for shape, _ in large))
    moves = None
    if strides is not None:
        steps = (tuple(step for step in stride if step != 1) for stride in strides)
        moves = tuple(sorted(stride for stride in steps if stride))
    return Structure(sizes, tuple(sorted({kind for _, kind in large})), moves, macs)


def _macs(count: int) -> str:
    return f"{count:,} multiplications"
