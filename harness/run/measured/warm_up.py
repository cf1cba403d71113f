"""Warms up every instance with all batch sizes that can occur, until the latency stops falling."""

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.loadgen.answers import AnswerRow, common_row, largest_bytes, row_of
from harness.machine.threads import ComputingThreads, Placed, running_on
from harness.run.measured.answerer import Answerer, run_in_threads

EXAMINE_LIMIT_S = 5.0
"""The shapes of answers are examined for at most this long. The first batch is always examined."""

COVER_LIMIT_S = 10.0
"""After this time, the remaining batch sizes between the smallest and the largest are skipped."""

FLAT_LIMIT_S = 5.0
"""Time limit for all instances together. If the latency is still falling after this time, it is reported as not flat.
"""

FLAT_SHARE = 0.05
FLAT_ROUNDS = 3
"""The latency is flat if FLAT_ROUNDS consecutive rounds were not faster than the best earlier round by FLAT_SHARE.
Slower rounds count, too, because other load on the machine causes them, not a cold model.
"""

MOST_ROUNDS = 50


EXAMINED = 8
"""This many samples are first processed one by one if answers may differ in shape."""


class Warmth(NamedTuple):
    """The result of a warm-up."""

    row: AnswerRow | None
    """Shape and type of all answers; None if shapes differ between batches."""
    first: AnswerRow
    """Shape and type of the first answers."""
    answer_bytes: int
    """Size of the largest answer seen."""
    slowest_ns: int
    """Time of the slowest warm batch."""
    first_ns: list[int]
    """Time of each instance's first batch, which has the smallest size."""
    placed: list[Placed]
    """Placement of each instance's threads."""
    skipped: int
    """Number of batch sizes that were skipped for lack of time."""
    flat: bool
    """Whether the latency had stopped falling."""
    seconds: float


def batch_sizes(dispatch: str, max_batch: int, query_samples: int = 1) -> list[int]:
    """Returns every batch size that can occur, ascending, except Offline's last batch (see `remainders`)."""
    if dispatch == "queued":
        return list(range(1, max_batch + 1))
    if dispatch == "sliced":
        return [max_batch]
    return sorted({min(query_samples, max_batch), query_samples % max_batch or max_batch})


def remainders(counts: Sequence[int], max_batch: int) -> list[int]:
    """Returns the size of the last batch for each number of samples, ascending. Omits complete batches."""
    return sorted({count % max_batch for count in counts} - {0})


def probes(sizes: Sequence[int]) -> list[int]:
    """Returns the sizes that are timed repeatedly: the smallest, the largest, and the powers of two between them."""
    return [s for s in sizes if s in (sizes[0], sizes[-1]) or s & (s - 1) == 0]


def warm_up(
    answerers: Sequence[Answerer],
    sizes: Sequence[int],
    batch_of: Callable[[int], list[int]],
    alone: Sequence[int] = (),
) -> Warmth:
    """Warms up all instances in three phases.

    First, each cold instance runs alone. Then all instances run all sizes together. Finally, each instance runs alone
    until its latency is flat.

    sizes: every batch size that can occur, ascending. batch_of: returns the given number of indices. `batch_of` is
    called for each batch, because the indices for all sizes of a large --max-batch would exhaust the memory. Each call
    returns different indices, because a backend may cache the last inputs. alone: samples that the first instance
    processes one by one, because answers may differ in shape.
    """
    start = time.monotonic()
    smallest, largest = batch_of(sizes[0]), batch_of(sizes[-1])
    firsts = [_first(each, smallest, largest) for each in answerers]
    skipped = _cover(answerers, sizes[1:-1], batch_of)
    timed = probes(sizes)
    rows, answer_bytes = _examine(
        answerers[0], [*([i] for i in alone[:EXAMINED]), *(batch_of(size) for size in timed)]
    )
    rounds = [
        until_flat(each, timed, batch_of, FLAT_LIMIT_S / len(answerers)) for each in answerers
    ]
    row = common_row(rows)
    if row is not None and not answer_bytes:
        raise ConfigError(answerers[0].no_numbers(row))
    return Warmth(
        row=row,
        first=rows[0],
        answer_bytes=answer_bytes,
        slowest_ns=max(slowest_ns for slowest_ns, _ in rounds),
        first_ns=[ns for ns, _ in firsts],
        placed=[placed for _, placed in firsts],
        skipped=skipped,
        flat=all(flat for _, flat in rounds),
        seconds=time.monotonic() - start,
    )


def _first(each: Answerer, smallest: list[int], largest: list[int]) -> tuple[int, Placed]:
    """Returns the time of the first batch in ns, and the placement of the threads that computed both batches.

    Both batches run on a separate thread per instance, as in the run. OpenMP has one set of threads per calling thread.
    If one set served all instances, the threads of this set would appear unpinned.
    """
    results: list[tuple[int, Placed]] = []

    def answer(_: int) -> None:
        threads = ComputingThreads()
        first_ns = each.time_ns(smallest)
        each.answer(largest)
        placed = threads.placed(each.cpus) if each.cpus else Placed(None, None)
        results.append((first_ns, placed))

    run_in_threads([each], answer)
    return results[0]


def _examine(each: Answerer, batches: Sequence[list[int]]) -> tuple[list[AnswerRow], int]:
    """Returns the shape and type of each batch's answers, and the size of the largest answer.

    Skips further batches after EXAMINE_LIMIT_S.
    """
    rows: list[AnswerRow] = []
    largest = 0
    deadline = time.monotonic() + EXAMINE_LIMIT_S
    for batch in batches:
        if rows and time.monotonic() > deadline:
            break
        answers = each.answer(batch)
        rows.append(row_of(answers))
        largest = max(largest, largest_bytes(answers))
    return rows, largest


def _cover(
    answerers: Sequence[Answerer], sizes: Sequence[int], batch_of: Callable[[int], list[int]]
) -> int:
    """Processes one batch of every size on every instance, largest first. Returns the number of skipped sizes."""
    deadline = time.monotonic() + COVER_LIMIT_S
    done = [0] * len(answerers)

    def cover(i: int) -> None:
        for size in reversed(sizes):
            if time.monotonic() > deadline:
                return
            answerers[i].answer(batch_of(size))
            done[i] += 1

    run_in_threads(answerers, cover)
    return len(sizes) - min(done)


def until_flat(
    each: Answerer, sizes: Sequence[int], batch_of: Callable[[int], list[int]], limit_s: float
) -> tuple[int, bool]:
    """Processes batches in rounds until the latency is flat. Each round has one batch per size, largest first.

    The largest size is timed at least once. Two sets of batches alternate. A round is compared only with rounds of
    the same set, because samples may differ in length. Returns the median time of the slowest size in ns, and whether
    the latency became flat.
    """
    deadline = time.monotonic() + limit_s
    times: list[list[int]] = [[] for _ in sizes]
    sets = [[batch_of(size) for size in reversed(sizes)] for _ in range(2)]
    best_ns, flat_rounds, rounds = [0, 0], 0, 0
    with running_on(each.cpus):
        while flat_rounds < FLAT_ROUNDS and rounds < MOST_ROUNDS:
            for batch, mine in zip(sets[rounds % 2], times, strict=True):
                if times[0] and time.monotonic() > deadline:
                    return _slowest_ns(times), False
                mine.append(each.time_ns(batch))
            spent_ns, best = sum(mine[-1] for mine in times), best_ns[rounds % 2]
            if not best or spent_ns < (1 - FLAT_SHARE) * best:
                best_ns[rounds % 2], flat_rounds = spent_ns, 0
            else:
                # `best` is not updated, because the limit would otherwise follow a slowly falling latency.
                flat_rounds += 1
            rounds += 1
    return _slowest_ns(times), flat_rounds >= FLAT_ROUNDS


def _slowest_ns(times: Sequence[Sequence[int]]) -> int:
    return max(int(np.median(mine)) for mine in times if mine)
