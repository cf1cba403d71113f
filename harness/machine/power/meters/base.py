"""Helpers of meters that read the kernel's files."""


class HoldsNothing:
    """A meter without open files or processes, so that leaving it does nothing."""

    def __exit__(self, *exc: object) -> None:
        pass


def micro(path: str) -> float:
    """Read a number that the kernel writes in millionths, e.g. microjoules.

    The file is opened for every reading: an open file would outlive its device.
    """
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - 20 times a second, while others work
        return int(file.read()) / 1e6


def tried(path: str) -> float | Exception:
    """`micro`, or its exception as the value: a sensor that is gone must not stop the others."""
    try:
        return micro(path)
    except (OSError, ValueError) as e:
        return e
