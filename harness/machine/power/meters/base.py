"""Helpers for meters that read the kernel's files."""


class HoldsNothing:
    """Base of a meter without open files or processes. Leaving such a meter does nothing."""

    def __exit__(self, *exc: object) -> None:
        pass


def micro(path: str) -> float:
    """Reads a number that the kernel writes in millionths, e.g. microjoules.

    Opens the file for every reading, because a file that stays open would outlive its device.
    """
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - 20 times per second, during the run
        return int(file.read()) / 1e6


def tried(path: str) -> float | Exception:
    """Returns the value of `micro`, or its exception, because a missing sensor must not stop readings of other
    sensors.
    """
    try:
        return micro(path)
    except (OSError, ValueError) as e:
        return e
