"""Decides whether two files contain the same network.

Compares the sizes of weights, the strides of convolutions and the multiplications per sample, because a conversion to
another framework or precision does not change these numbers. Names are not compared, because published files with the
same name can have different layers. Ignores layouts, fused normalisations and number types, because they differ between
frameworks.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

SAME_MACS = 0.001
"""Two networks count as the same if their multiplication counts differ by at most this share, because conversions fold
and pad layers.
"""


class Structure(NamedTuple):
    """The features of a network that survive a conversion."""

    weights: tuple[int, ...]
    """Number of elements in each weight with at least two dimensions larger than 1, sorted."""
    types: tuple[str, ...]
    """Number types of these weights."""
    strides: tuple[tuple[int, ...], ...] | None = None
    """Strides above 1 of each convolution, sorted; None if the file does not record them."""
    macs: int | None = None
    """Number of multiplications per sample in convolutions and matrix products; None if unknown."""

    def __str__(self) -> str:
        summary = f"{len(self.weights)} weight tensors with {sum(self.weights):,} weights"
        return summary if self.macs is None else f"{summary}, {_macs(self.macs)} per sample"

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
    """Describes the difference, or returns '' if all features that both files record are equal.

    Networks with equal numbers of weights and multiplications count as the same even if their tensors differ, because
    frameworks split the weights of groups and gates differently.
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
        return f"{_macs(theirs.macs or 0)} per sample, not {_macs(ours.macs or 0)}"
    return ""


def of_shapes(
    shapes: Iterable[tuple[Sequence[int], str]],
    strides: Iterable[Sequence[int]] | None = None,
    macs: int | None = None,
) -> Structure:
    """shapes: (shape, type) of all weights. strides: the strides of all convolutions."""
    large = [(shape, kind) for shape, kind in shapes if sum(size != 1 for size in shape) > 1]
    sizes = tuple(sorted(prod(shape) for shape, _ in large))
    moves = None
    if strides is not None:
        steps = (tuple(step for step in stride if step != 1) for stride in strides)
        moves = tuple(sorted(stride for stride in steps if stride))
    return Structure(sizes, tuple(sorted({kind for _, kind in large})), moves, macs)


def _macs(count: int) -> str:
    return f"{count:,} multiplications"
