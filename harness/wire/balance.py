"""Chooses the least loaded server for each request. Among equally loaded servers, chooses the server that has received
the fewest requests.
"""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Generic, Protocol, TypeVar

_STEPS = 2
"""Each server's time per request is rounded to halves of the fastest server's time. Even between equal machines, times
measured over a few seconds differ by up to a quarter while other programs run.
"""


class Place(Protocol):
    """A connection, or a channel that supports several calls at once."""

    @property
    def number(self) -> int:
        """Number of the place's server."""


P = TypeVar("P", bound=Place)


class Free(Protocol[P]):
    """Places that carry no request. Each operation is atomic under the GIL, or is retried if another thread interferes."""

    def append(self, place: P, /) -> None: ...

    def pop(self) -> P:
        """Removes and returns a place. Raises IndexError if no place is free."""

    def remove(self, place: P, /) -> None:
        """Removes the place. Raises ValueError if the place is not free."""

    def clear(self) -> None: ...

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[P]: ...


class Balance(Generic[P]):
    """Free places at several servers. `pop` returns a place at the server with the lowest load relative to its speed."""

    def __init__(self, most: Sequence[int], speeds: Sequence[float]) -> None:
        """most: number of requests that each server may hold at once. speeds: one per server, all in the same unit."""
        self._free: list[list[P]] = [[] for _ in most]
        self._most = list(most)
        fastest = max(speeds)
        self._slowness = [fastest / speed for speed in speeds]
        self._steps = [round(_STEPS * slowness) for slowness in self._slowness]
        self._given = [0.0] * len(most)

    def append(self, place: P) -> None:
        self._free[place.number].append(place)

    def pop(self) -> P:
        """Removes and returns a place. Raises IndexError if no place is free."""
        free, most, steps, given = self._free, self._most, self._steps, self._given
        while True:
            best, least = -1, (0, 0.0)
            for number, own in enumerate(free):
                if own:
                    load = (most[number] - len(own) + 1) * steps[number], given[number]
                    if best < 0 or load < least:
                        best, least = number, load
            if best < 0:
                raise IndexError
            try:
                place = free[best].pop()
            except IndexError:
                continue  # another thread took the place first
            given[best] += self._slowness[best]
            return place

    def remove(self, place: P) -> None:
        """Removes the place. Raises ValueError if the place is not free."""
        self._free[place.number].remove(place)

    def clear(self) -> None:
        for own in self._free:
            own.clear()

    def __bool__(self) -> bool:
        return any(self._free)

    def __len__(self) -> int:
        return sum(map(len, self._free))

    def __iter__(self) -> Iterator[P]:
        return chain.from_iterable(self._free)


def balanced(most: int | Sequence[int], servers: int) -> Free[Any]:
    """Returns an empty set of free places for servers of equal speed.

    most: number of requests that a server may hold at once, as one number for all servers or one per server.
    """
    if servers == 1:
        return []
    return Balance([most] * servers if isinstance(most, int) else most, [1.0] * servers)
