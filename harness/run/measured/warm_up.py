"""Before LoadGen: every instance answers what is to come, until it does so no faster any more."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.loadgen.answers import AnswerRow, Answers, common_row, largest_bytes, row_of
from harness.machine.threads import ComputingThreads, Placed, run_on, running_on
from harness.models.steps.postprocess import Postprocess, wrong_count
from harness.types import Backend, Dataset

LOOK_LIMIT_S = 5.0
"""For what answers are like; the first batch is always looked at."""

COVER_LIMIT_S = 10.0
"""Batch sizes between the smallest and the largest are skipped after this long."""

FLAT_LIMIT_S = 5.0
"""For all instances together; what is not flat by then is told to be so."""

FLAT_SHARE = 0.05
FLAT_ROUNDS = 3
"""Latency is flat when so many rounds, one after another, were not faster than the best before by
this share. Slower ones count: a busy machine does not make a model colder."""

MOST_ROUNDS = 50


LOOKED_AT = 8
"""Samples that are answered alone first, where answers may differ in shape."""


class Answerer(NamedTuple):
    """What answers a batch, without LoadGen. Raises whatever the plug-ins raise.

    cpus: the instance's own logical processors, () for any.
    """

    backend: Backend
    dataset: Dataset
    postprocess: Postprocess
    cpus: Sequence[int] = ()

    def answer(self, indices: Sequence[int]) -> Answers:
        outputs = self.backend.infer(self.dataset.batch(indices))
        answers = self.postprocess.answers(outputs, indices)
        if self.postprocess.has_nan(outputs, answers):
            raise ValueError("the model's outputs hold NaN")
        if len(answers) != len(indices):
            raise ConfigError(wrong_count(len(answers), len(indices)))
        return answers

    def time_ns(self, indices: Sequence[int]) -> int:
        start_ns = time.monotonic_ns()
        self.answer(indices)
        return time.monotonic_ns() - start_ns


class Warmth(NamedTuple):
    """What warm-up found.

    row: what every later answer must be like; None where their shapes differ from batch to batch.
    first: what the first answers are like. answer_bytes: of the largest answer seen.
    slowest_ns: the slowest batch, warm. first_ns: each instance's first batch, of the smallest size.
    placed: where each one's threads were. skipped: batch sizes that there was no time for. flat:
    latency had stopped falling.
    """

    row: AnswerRow | None
    first: AnswerRow
    answer_bytes: int
    slowest_ns: int
    first_ns: list[int]
    placed: list[Placed]
    skipped: int
    flat: bool
    seconds: float


def batch_sizes(dispatch: str, max_batch: int, query_samples: int = 1) -> list[int]:
    """Every batch size that can occur, ascending; for Offline without the remainder, see below."""
    if dispatch == "queued":
        return list(range(1, max_batch + 1))
    if dispatch == "sliced":
        return [max_batch]
    return sorted({min(query_samples, max_batch), query_samples % max_batch or max_batch})


def remainders(counts: Sequence[int], max_batch: int) -> list[int]:
    """Sizes of the last batch of so many samples, where it is not the largest; ascending."""
    return sorted({count % max_batch for count in counts} - {0})


def probes(sizes: Sequence[int]) -> list[int]:
    """Those of `sizes` that are looked at again and again: the ends, and powers of two between."""
    return [s for s in sizes if s in (sizes[0], sizes[-1]) or s & (s - 1) == 0]


def warm_up(
    answerers: Sequence[Answerer],
    sizes: Sequence[int],
    batch_of: Callable[[int], list[int]],
    alone: Sequence[int] = (),
) -> Warmth:
    """sizes: every one that can occur, ascending. batch_of: indices of so many samples, made as they
    are needed: of all of a large --max-batch's sizes at once they would fill the memory. alone:
    samples that the first instance answers one by one, to see whether their answers differ in shape.

    First each instance alone, for what is cold and where its threads are; then all at once through
    all sizes; then each alone again until latency is flat.
    """
    start = time.monotonic()
    smallest, largest = batch_of(sizes[0]), batch_of(sizes[-1])
    firsts = [_first(each, smallest, largest) for each in answerers]
    skipped = _cover(answerers, sizes[1:-1], batch_of)
    probed = [batch_of(size) for size in probes(sizes)]
    rows, answer_bytes = _look(answerers[0], [*([i] for i in alone[:LOOKED_AT]), *probed])
    rounds = [_until_flat(each, probed, FLAT_LIMIT_S / len(answerers)) for each in answerers]
    return Warmth(
        row=common_row(rows),
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
    """ns of the first batch, and where the threads were that computed it and the largest.

    On a thread of the instance's own, as in the run: OpenMP has a set of threads for each thread
    that calls it, and one set for all instances would look as if it were not pinned.
    """
    found: list[tuple[int, Placed]] = []

    def answer(_: int) -> None:
        threads = ComputingThreads()
        first_ns = each.time_ns(smallest)
        each.answer(largest)
        placed = threads.placed(each.cpus) if each.cpus else Placed(None, None)
        found.append((first_ns, placed))

    run_in_threads([each], answer)
    return found[0]


def _look(each: Answerer, batches: Sequence[list[int]]) -> tuple[list[AnswerRow], int]:
    """What the answers of each batch are like, as time allows, and the largest one's bytes."""
    rows: list[AnswerRow] = []
    largest = 0
    deadline = time.monotonic() + LOOK_LIMIT_S
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
    """Every size once on every instance, largest first, as time allows. -> how many sizes not."""
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


def _until_flat(each: Answerer, batches: Sequence[list[int]], limit_s: float) -> tuple[int, bool]:
    """Rounds of all `batches`, the largest first; that one is timed once at least.

    -> the slowest batch's median time in ns; whether it came to rest.
    """
    deadline = time.monotonic() + limit_s
    times: list[list[int]] = [[] for _ in batches]
    best_ns, resting, rounds = 0, 0, 0
    with running_on(each.cpus):
        while resting < FLAT_ROUNDS and rounds < MOST_ROUNDS:
            for batch, mine in zip(reversed(batches), times, strict=True):
                if times[0] and time.monotonic() > deadline:
                    return _slowest_ns(times), False
                mine.append(each.time_ns(batch))
            rounds += 1
            spent_ns = sum(mine[-1] for mine in times)
            if not best_ns or spent_ns < (1 - FLAT_SHARE) * best_ns:
                best_ns, resting = spent_ns, 0
            else:  # the best stays: it would follow a latency that creeps down
                resting += 1
    return _slowest_ns(times), resting >= FLAT_ROUNDS


def _slowest_ns(times: Sequence[Sequence[int]]) -> int:
    return max(int(np.median(mine)) for mine in times if mine)


def calibrate_latency(each: Answerer, query: Sequence[list[int]], limit_s: float) -> dict[str, Any]:
    """Median time of one query, answered alone. query: its batches."""
    start = time.monotonic()
    with running_on(each.cpus):
        times = _repeat(each, query, start + limit_s)
    return {"latency_ns": int(np.median(times)), "seconds": time.monotonic() - start}


def busy_at(
    concurrency: int | None, answerers: Sequence[Answerer], largest: list[int]
) -> tuple[Sequence[Answerer], list[int]]:
    """Who is busy, and on which batch, with so many queries in flight; None: as many as can be."""
    if concurrency is None:
        return answerers, largest
    busy = answerers[:concurrency]
    return busy, largest[: max(1, concurrency // len(busy))]


def calibrate_rate(
    answerers: Sequence[Answerer], batch: list[int], limit_s: float
) -> Mapping[str, Any]:
    """samples/s with every instance busy on `batch`."""
    start = time.monotonic()
    counts = [0] * len(answerers)

    def work(i: int) -> None:
        counts[i] = len(_repeat(answerers[i], [batch], start + limit_s))

    run_in_threads(answerers, work)
    seconds = time.monotonic() - start
    return {"rate_per_s": sum(counts) * len(batch) / seconds, "seconds": seconds}


CURVE_LIMIT_S = 2.0
CURVE_PERCENT = 90
"""Of a size's times: with the median, every second batch that was said to fit would not."""


def measure_curve(
    answerers: Sequence[Answerer], batches: Sequence[list[int]], limit_s: float = CURVE_LIMIT_S
) -> list[tuple[int, int]]:
    """(samples, ns) of each of `batches` with every instance busy on them."""
    deadline = time.monotonic() + limit_s
    found: list[list[list[int]]] = [[] for _ in answerers]

    def work(i: int) -> None:
        while not found[i] or time.monotonic() < deadline:
            found[i].append([answerers[i].time_ns(batch) for batch in batches])

    run_in_threads(answerers, work)
    times = np.percentile(np.concatenate(found), CURVE_PERCENT, axis=0)
    return [(len(batch), int(ns)) for batch, ns in zip(batches, times, strict=True)]


def run_in_threads(answerers: Sequence[Answerer], work: Callable[[int], None]) -> None:
    """work(i) for every instance at the same time, each on its processors; the first error."""
    errors: list[BaseException] = []

    def run(i: int) -> None:
        try:
            run_on(answerers[i].cpus)
            work(i)
        except BaseException as e:  # noqa: BLE001 - raised again below
            errors.append(e)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(answerers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def _repeat(each: Answerer, batches: Sequence[list[int]], deadline_s: float) -> list[int]:
    """ns of each repetition of all `batches`, until the deadline; at least one."""
    times: list[int] = []
    while not times or time.monotonic() < deadline_s:
        times.append(sum(each.time_ns(indices) for indices in batches))
    return times
