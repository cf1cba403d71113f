"""Helpers for meters that read the kernel's files."""


class HoldsNothing:
    """Base class of meters that hold no open files or processes, so that leaving the context does nothing."""

    def __exit__(self, *exc: object) -> None:
        pass


def micro(path: str) -> float:
    """Reads a number that the kernel writes in millionths, such as microjoules.

    Opens the file for every reading, because an open file would outlive its device.
    """
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - 20 times per second, during the run
        return int(file.read()) / 1e6


def tried(path: str) -> float | Exception:
    """Returns the result of `micro` or the exception that it raises, because a missing sensor must not prevent other
    sensors from being read.
    """
    try:
        return micro(path)
    except (OSError, ValueError) as e:
        return e
