"""Numbers classes that data name by texts: 0, 1, ... in the sorted order of the names, as sub-folders are."""

from collections.abc import Iterable, Sequence

from harness.types import ClassName


def numbered(labels: Sequence[object]) -> list[object]:
    """The labels, each text with the number of its class; texts that are all whole numbers are these numbers."""
    names = sorted({label for label in labels if isinstance(label, str)})
    are_numbers = all(name.isascii() and name.isdecimal() for name in names)
    numbers = {name: int(name) if are_numbers else i for i, name in enumerate(names)}
    return [ClassName(one, numbers[one]) if isinstance(one, str) else one for one in labels]


def class_names(labels: Iterable[object]) -> dict[int, str]:
    """Number -> name. labels: as `numbered` returns them."""
    names = {label.number: str(label) for label in labels if isinstance(label, ClassName)}
    return dict(sorted(names.items()))
