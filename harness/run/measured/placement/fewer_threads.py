"""Lets the only instance of a stream compute with fewer threads if this makes queries faster.

A framework's threads may fall asleep between two queries. If the model takes microseconds, waking a thread takes more
time than the thread saves. A loop without pauses would not show this effect.
"""

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import NamedTuple

import numpy as np

from harness.core.registry import plugin
from harness.core.units import NS_PER_MS
from harness.errors import ConfigError, HarnessError, one_line
from harness.run.measured.answerer import Answerer
from harness.run.measured.placement.lone import query_ns
from harness.types import Backend

SOONER = 0.1
"""Fewer threads are chosen only if they save at least this share of a query's time. With a lower minimum, repeated runs
would choose different numbers of threads.
"""

ALIKE = 0.03
"""Times that differ by at most this share count as equal. Among thread counts with equal times, the smallest is chosen.
"""

LIMIT_NS = 2 * NS_PER_MS
"""Fewer threads are tried only if a query takes at most this long. Longer queries would gain little, because a thread
wakes within about ten microseconds.
"""

LOAD_LIMIT_S = 0.25
"""Fewer threads are tried only if an instance loads within this time, because each turn loads the model again."""

ROUNDS = 3

WARM_UP = 10
"""Number of untimed queries at the start of a turn, during which frameworks choose kernels and start threads."""

LEAST, MOST = 10, 100
"""A turn times at least LEAST and at most MOST queries."""

TURN_NS = 5 * NS_PER_MS
"""A turn ends after this time if it has timed LEAST queries."""

QUIET = 0.25
"""This quantile of the query times represents a turn. The quantile is low, because other load on the machine only adds
time.
"""

Reopen = Callable[[int], Backend]
"""Closes the instance and reopens it with the given number of threads. Two instances are never open at the same time,
because some frameworks have only one thread pool per process.
"""

Query = Callable[[], Sequence[Sequence[int]]]
"""Returns the batches of a query. Each call returns different samples."""


class Choice(NamedTuple):
    """The number of threads to use, and the instance with these threads."""

    answerer: Answerer
    threads: int
    times_ns: Sequence[tuple[int, int]] = ()
    """Pairs (threads, query time in ns in the best turn), with the most threads first; () if fewer threads were not
    tried.
    """


def choose(usual: Answerer, threads: int, reopen: Reopen, query: Query) -> Choice:
    """Alternately times queries with all threads and with fewer threads.

    Skips thread counts with which the model does not work. Raises a ConfigError if the model cannot be reopened
    with all threads. usual: the open and warm instance with `threads` threads.
    """
    trial = _Trial(usual, threads, reopen, query)
    trial.take_turn(threads)
    if trial.rounds[threads][0] > LIMIT_NS:
        return Choice(usual, threads)
    order = [threads, *fewer(threads)]
    turns = order[1:]
    for _ in range(ROUNDS):
        for each in turns:
            trial.take_turn(each)
        order = [each for each in order if each == threads or trial.may_win(each)]
        if order == [threads]:
            break
        order.reverse()  # the next round begins with the open instance, which saves a load
        turns = order
    chosen = fewest(threads, trial.rounds)
    return Choice(trial.opened(chosen), chosen, trial.best_ns())


def fewer(threads: int) -> list[int]:
    """Returns the powers of two below `threads`."""
    return [1 << k for k in range(threads.bit_length()) if 1 << k < threads]


def fewest(threads: int, rounds: Mapping[int, Sequence[float]]) -> int:
    """Returns the thread count with the lowest times, or `threads` if no other count is clearly faster.

    Because disturbances only add time, a count is clearly faster only if its slowest round is faster than the fastest
    round with all threads. rounds: maps a thread count to the time of a query in each round.
    """
    most_ns = (1 - SOONER) * min(rounds[threads])
    sooner = {n: max(times) for n, times in rounds.items() if n < threads and max(times) <= most_ns}
    alike_ns = (1 + ALIKE) * min(sooner.values(), default=0.0)
    return min((n for n, ns in sooner.items() if ns <= alike_ns), default=threads)


class _Trial:
    """Tries several thread counts in alternating turns. Only one instance is open at a time."""

    def __init__(self, usual: Answerer, threads: int, reopen: Reopen, query: Query) -> None:
        self._answerer, self._open, self._all = usual, threads, threads
        self._reopen, self._query = reopen, query
        self.rounds: dict[int, list[float]] = {threads: []}
        """Maps a thread count to its query times in ns, one per turn."""

    def take_turn(self, threads: int) -> None:
        """Times queries with `threads` threads. If the model does not work with fewer threads, drops this thread count."""
        if threads == self._all:
            self.rounds[threads].append(self._turn_ns(threads))
            return
        try:
            with plugin("an instance with fewer threads"):
                turn_ns = self._turn_ns(threads)
        # The run also works with all threads, so this error does not stop the run.
        except HarnessError:
            self.rounds.pop(threads, None)
            self._open = 0
        else:
            self.rounds.setdefault(threads, []).append(turn_ns)

    def may_win(self, threads: int) -> bool:
        rounds = {n: self.rounds[n] for n in (self._all, threads) if n in self.rounds}
        return fewest(self._all, rounds) == threads

    def opened(self, threads: int) -> Answerer:
        """Returns the instance with this number of threads."""
        if threads != self._open:
            try:
                backend = self._reopen(threads)
            except HarnessError as e:
                if threads != self._all:
                    raise
                raise ConfigError(
                    f"a trial of fewer threads closed the model, which cannot be opened again ({one_line(e)}): pass "
                    f"--threads {threads} to skip the trial"
                ) from e
            self._answerer = self._answerer._replace(backend=backend)
            self._open = threads
        return self._answerer

    def best_ns(self) -> list[tuple[int, int]]:
        return [(n, int(min(times))) for n, times in sorted(self.rounds.items(), reverse=True)]

    def _turn_ns(self, threads: int) -> float:
        each, query, times_ns = self.opened(threads), self._query, list[int]()
        for _ in range(WARM_UP):
            query_ns(each, query())
        end_ns = monotonic_ns() + TURN_NS
        while len(times_ns) < LEAST or (len(times_ns) < MOST and monotonic_ns() < end_ns):
            times_ns.append(query_ns(each, query()))
        return float(np.quantile(times_ns, QUIET))
