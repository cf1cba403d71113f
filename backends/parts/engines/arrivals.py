"""Passes tokens from an engine's threads to the thread that runs the engine's steps; a step takes at most one token per
answer.
"""

from collections import deque
from collections.abc import Sequence
from queue import SimpleQueue


class Arrivals:
    """The tokens of the active answers. Any thread may call `put`, but only one thread may call the other methods."""

    def __init__(self) -> None:
        self._active: set[int] = set()
        self._arrived: SimpleQueue[tuple[int, int | Exception]] = SimpleQueue()
        self._kept: deque[tuple[int, int | Exception]] = deque()

    def expect(self, key: int) -> None:
        """Starts to accept tokens of an answer."""
        self._active.add(key)

    def expects(self, key: int) -> bool:
        return key in self._active

    def forget(self, key: int) -> None:
        """Drops all further tokens of an answer."""
        self._active.discard(key)

    def forget_all(self) -> None:
        self._active.clear()

    def put(self, key: int, token: int | Exception) -> bool:
        """Adds a token, or the exception that replaces it. Returns whether the answer is still wanted."""
        self._arrived.put((key, token))
        return key in self._active

    def step(self) -> Sequence[tuple[int, int]]:
        """Waits for a token, and returns all tokens that have arrived. A second token of the same answer waits for the
        next step.

        Raises the exception that an engine thread put in place of a token.
        """
        found: dict[int, int] = {}
        later: deque[tuple[int, int | Exception]] = deque()
        while not found or self._kept or not self._arrived.empty():
            key, token = self._kept.popleft() if self._kept else self._arrived.get()
            if key not in self._active:
                continue
            if key in found:
                later.append((key, token))
            elif isinstance(token, Exception):
                raise token
            else:
                found[key] = token
        self._kept = later
        return [*found.items()]
