"""Numbers the classes of data sets that name their classes. The sorted names are numbered 0, 1, ..., like the names of
sub-folders.
"""

from collections.abc import Iterable, Sequence

from harness.types import ClassName


def numbered(labels: Sequence[object]) -> list[object]:
    """Returns the labels with each string replaced by its class number. If all strings are whole numbers, these numbers
    are the class numbers.
    """
    names = sorted({label for label in labels if isinstance(label, str)})
    are_numbers = all(name.isascii() and name.isdecimal() for name in names)
    numbers = {name: int(name) if are_numbers else i for i, name in enumerate(names)}
    return [ClassName(one, numbers[one]) if isinstance(one, str) else one for one in labels]


def class_names(labels: Iterable[object]) -> dict[int, str]:
    """Returns the names of classes by class number. labels: the result of `numbered`."""
    names = {label.number: str(label) for label in labels if isinstance(label, ClassName)}
    return dict(sorted(names.items()))
