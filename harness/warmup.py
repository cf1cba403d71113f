"""Before LoadGen: warm every instance up, and find out how fast the model is."""

import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.answers import AnswerRow, Answers, common_row, largest_bytes, row_of
from harness.postprocess import Postprocess
from harness.types import Backend, Dataset

LIMIT_S = 5.0
"""Batch sizes between the smallest and the largest are skipped once warm-up took this long."""


LOOKED_AT = 8
"""Samples that are answered alone first, where answers may differ in shape."""


class Answerer(NamedTuple):
    """What answers a batch, without LoadGen. Raises whatever the plug-ins raise."""

    backend: Backend
    dataset: Dataset
    postprocess: Postprocess

    def answer(self, indices: Sequence[int]) -> Answers:
        outputs = self.backend.infer(self.dataset.batch(indices))
        answers = self.postprocess.answers(outputs, indices)
        if self.postprocess.has_nan(outputs, answers):
            raise ValueError("the model's outputs hold NaN")
        if len(answers) != len(indices):
            raise ValueError(f"{len(answers)} outputs for {len(indices)} samples")
        return answers


def batches_of(max_batch: int, held: int, *, may_vary: bool) -> tuple[list[int], list[list[int]]]:
    """The samples to load, from the first on, and batches of the sizes to come, by ascending size.

    may_vary: some are looked at alone, too.
    """
    sizes = sorted({1 << n for n in range(max_batch.bit_length())} | {max_batch})
    loaded = list(range(min(held, max(max_batch, LOOKED_AT if may_vary else 1))))
    return loaded, [[loaded[i % len(loaded)] for i in range(n)] for n in sizes]


class Warmed(NamedTuple):
    """slowest_ns: the longest a batch took the second time. answer_bytes: of the largest answer.

    row: what every later answer must be like; None where their shapes differ from batch to batch.
    first: what the first batch's answers are like.
    """

    slowest_ns: int
    answer_bytes: int
    row: AnswerRow | None
    first: AnswerRow


def warm_up(
    answerers: Sequence[Answerer], batches: Sequence[list[int]], alone: Sequence[int] = ()
) -> Warmed:
    """Each batch twice on each instance. batches: indices, by ascending size.

    alone: samples that the first instance answers one by one before, to see whether their answers
    differ in shape.
    """
    slowest_ns = largest = 0
    rows: list[AnswerRow] = []
    deadline = time.monotonic() + LIMIT_S
    rows += (
        row_of(answerers[0].answer([i])) for i in alone[:LOOKED_AT] if time.monotonic() < deadline
    )
    for each in answerers:
        for batch in batches:
            if time.monotonic() > deadline and batch not in (batches[0], batches[-1]):
                continue
            answers = each.answer(batch)
            rows.append(row_of(answers))
            largest = max(largest, largest_bytes(answers))
            start_ns = time.monotonic_ns()
            each.answer(batch)
            slowest_ns = max(slowest_ns, time.monotonic_ns() - start_ns)
    return Warmed(slowest_ns, largest, common_row(rows), rows[0])


def calibrate_latency(each: Answerer, query: Sequence[list[int]], limit_s: float) -> dict[str, Any]:
    """Median time of one query, answered alone. query: its batches."""
    start = time.monotonic()
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

    errors: list[BaseException] = []

    def work(i: int) -> None:
        try:
            counts[i] = len(_repeat(answerers[i], [batch], start + limit_s))
        except BaseException as e:  # noqa: BLE001 - raised again below
            errors.append(e)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(answerers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.monotonic() - start
    if errors:
        raise errors[0]
    return {"rate_per_s": sum(counts) * len(batch) / seconds, "seconds": seconds}


def _repeat(each: Answerer, batches: Sequence[list[int]], deadline_s: float) -> list[int]:
    """ns of each repetition of all `batches`, until the deadline; at least one."""
    times: list[int] = []
    while not times or time.monotonic() < deadline_s:
        start_ns = time.monotonic_ns()
        for indices in batches:
            each.answer(indices)
        times.append(time.monotonic_ns() - start_ns)
    return times
