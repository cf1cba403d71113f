"""What meters share."""

from types import TracebackType


class HoldsNothing:
    """A meter that keeps nothing open between two readings."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass


def micro(path: str) -> float:
    """A number of the kernel's in millionths, e.g. microjoules. Opened anew for every reading: a file
    that is kept open outlives its device.
    """
    with open(path, encoding="ascii") as file:  # noqa: PTH123 - 20 times a second, while others work
        return int(file.read()) / 1e6


def tried(path: str) -> float | Exception:
    """The same, or what is in its way: a sensor that is gone does not take the others with it."""
    try:
        return micro(path)
    except (OSError, ValueError) as e:
        return e
