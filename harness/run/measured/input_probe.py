"""Probes an instance after the run, to check that it computes each input and that its answers depend on the inputs.

The instance is called as in the run: `Instance.answer` runs on a thread with the name of LoadGen's thread. The
instance's dataset, responder and journal are replaced by objects of this module. The probe makes two comparisons:

time      Times a new batch with slightly changed values, the same batch again, and a batch of the dataset, in turns.
          MLPerf's audit TEST04 compares two runs for this purpose.
answers   Compares the answers to the inputs of some samples. For this, the call and the postprocessing get the dataset
          indices of other samples.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_S
from harness.errors import type_and_text
from harness.loadgen.answers import AnswerRow, Answers, Ragged, is_close
from harness.run.measured.answerer import Answerer
from harness.run.measured.dispatch.instance import Failures, Instance
from harness.run.measured.load import on_loadgens_thread
from harness.types import Array, Batch, Dataset

CHANGE = 1e-3
"""A float changes by at most this share of its array's value range."""

ROUNDS = 32
FEWEST_ROUNDS = 8
"""At least this many rounds are timed. Each round has three batches."""

FEWEST_ROWS = 8
"""The answers of at least this many samples are compared."""

ANSWER_BATCHES = 5
"""Number of batches per comparison of answers: two inputs, one batch with exchanged indices, and two repetitions."""

LIMIT_S = 0.25
"""After this time, the probe ends if it has finished FEWEST_ROUNDS rounds."""

LARGEST_BYTES = 16 << 20
"""A batch is probed only if its inputs take at most this many bytes. Larger inputs take too long to copy and change."""

MOST_CHARACTERS = 200
"""An exception's line is cut to this many characters."""

Inputs = Mapping[str, Array]


def probe(
    each: Answerer,
    row: AnswerRow,
    loaded: Sequence[int],
    sizes: Sequence[int],
    most_s: float,
    tolerance: float,
) -> Mapping[str, Any]:
    """Returns `probed` for the `ended` message; harness/results/evidence/input_probe.py reads this entry.

    loaded: samples that the dataset has loaded. sizes: batch sizes, best first. The first size that takes no
    longer than most_s is probed. A probe ends early after twice most_s. tolerance: maximum difference between two
    answers that count as equal, as in `is_close`.
    """
    results: list[Mapping[str, Any]] = []

    def work() -> None:
        try:
            results.append(_Probe(each, row, loaded, tolerance).run(sizes, most_s))
        except Exception as e:  # noqa: BLE001 - the run is over and must not be lost
            results.append({"reason": type_and_text(e)})

    on_loadgens_thread(work, each.cpus)
    return results[0]


class _Inputs:
    """A dataset that returns the batch of the given indices with different inputs."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset
        self.next: Inputs = {}

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._dataset.batch(indices)._replace(inputs=self.next)


class _Recorder:
    """Replaces the responder and the journal. Keeps the last answers and the time that the backend took."""

    def __init__(self) -> None:
        self.rows: list[Array] = []
        self.took_ns = 0

    def complete(self, _ids: Sequence[int], answers: Answers) -> int:
        rows = answers.rows if isinstance(answers, Ragged) else answers
        self.rows = [np.array(row) for row in rows]
        return wall_ns()

    def complete_empty(self, _ids: Sequence[int]) -> int:
        return wall_ns()

    def batch(self, *row: Any) -> None:
        """Accepts a row as `Writer.batch` does, and keeps the time that the batch spent in the backend."""
        _first, _indices, _failed, _taken, gathered_ns, inferred_ns, *_ = row
        self.took_ns = inferred_ns - gathered_ns


class _Probe:
    def __init__(
        self, each: Answerer, row: AnswerRow, loaded: Sequence[int], tolerance: float
    ) -> None:
        self._dataset, self._loaded, self._tolerance = each.dataset, loaded, tolerance
        self._inputs, self._recorder, self._failures = (
            _Inputs(each.dataset),
            _Recorder(),
            Failures(),
        )
        inputs: Any = self._inputs
        recorder: Any = self._recorder
        self._answer = Instance(
            each.backend,
            inputs,
            each.postprocess,
            recorder,
            recorder,
            row,
            self._failures,
            each.cpus,
        ).answer

    def run(self, sizes: Sequence[int], most_s: float) -> Mapping[str, Any]:
        self._until_s = time.monotonic() + 2 * most_s
        for size in sizes:
            first = self._samples(0, size)
            inputs = self._dataset.batch(first).inputs
            if sum(rows.nbytes for rows in inputs.values()) > LARGEST_BYTES:
                continue
            rows = _copy(inputs)
            # The time of this batch is dropped, because the first batch of a size may be slower.
            self._took_ns(first, rows)
            rounds = -(-FEWEST_ROWS // size)
            calls = 3 * FEWEST_ROUNDS + ANSWER_BATCHES * rounds
            if self._took_ns(first, rows) * calls > most_s * NS_PER_S:
                continue
            answers = self._answers(size, rounds)
            return {
                "samples": size,
                **answers,
                **self._times(first, rows),
                "raised": self._raised(),
            }
        return {"reason": "a batch is too large, or takes too long for a run of this length"}

    def _answers(self, size: int, rounds: int) -> Mapping[str, int]:
        """Counts samples whose answers differ between two inputs but are the same when repeated (`rows`).

        Among these, `by_index` counts the samples whose answers followed the indices instead of the inputs.
        """
        rows = by_index = 0
        apart = size if size % len(self._loaded) else 1
        for number in range(rounds):
            ours, theirs = (self._samples(2 * number * size + at, size) for at in (0, apart))
            inputs, other_inputs = self._rows_of(ours), self._rows_of(theirs)
            first = self._rows(ours, inputs)
            other = self._rows(theirs, other_inputs)
            exchanged = self._rows(ours, other_inputs)
            first_again = self._rows(ours, inputs)
            other_again = self._rows(theirs, other_inputs)
            if self._is_over:
                break
            for a, b, found, a_again, b_again in zip(
                first, other, exchanged, first_again, other_again, strict=True
            ):
                repeats = self._is_equal(a, a_again) and self._is_equal(b, b_again)
                if repeats and not self._is_equal(a, b):
                    rows += 1
                    by_index += self._is_equal(found, a) and not self._is_equal(found, b)
        return {"rows": rows, "by_index": by_index}

    def _times(self, indices: Sequence[int], seen: Inputs) -> Mapping[str, list[int]]:
        """Returns the times of each round in ns. Before each call, the inputs are prepared in the same way."""
        change = _Change(seen)
        times: dict[str, list[int]] = {"changed_ns": [], "again_ns": [], "seen_ns": []}
        until_s = time.monotonic() + LIMIT_S
        while change.works and not self._is_over and len(times["seen_ns"]) < ROUNDS:
            if len(times["seen_ns"]) >= FEWEST_ROUNDS and time.monotonic() >= until_s:
                break
            changed: Inputs = {}
            for name, row in times.items():
                new = change.next()
                changed = changed or new
                row.append(self._took_ns(indices, _copy(seen if name == "seen_ns" else changed)))
        return times

    @property
    def _is_over(self) -> bool:
        return bool(self._failures.samples) or time.monotonic() > self._until_s

    def _samples(self, start: int, size: int) -> list[int]:
        return [self._loaded[(start + i) % len(self._loaded)] for i in range(size)]

    def _rows_of(self, indices: Sequence[int]) -> Inputs:
        return _copy(self._dataset.batch(indices).inputs)

    def _took_ns(self, indices: Sequence[int], inputs: Inputs) -> int:
        self._inputs.next = inputs
        self._answer(indices, indices, 0, wall_ns())
        return self._recorder.took_ns

    def _rows(self, indices: Sequence[int], inputs: Inputs) -> list[Array]:
        self._took_ns(indices, inputs)
        rows = self._recorder.rows
        return [_without(index, row) for index, row in zip(indices, rows, strict=False)]

    def _is_equal(self, ours: Array, theirs: Array) -> bool:
        return np.array_equal(ours, theirs) or is_close(ours, theirs, self._tolerance)

    def _raised(self) -> str:
        """Returns the last line of the first exception, cut to MOST_CHARACTERS; "" without an exception."""
        lines = self._failures.first.strip().splitlines()
        return lines[-1][:MOST_CHARACTERS] if lines else ""


def _without(index: int, row: Array) -> Array:
    """Returns the answer with the sample's dataset index replaced by 0, because a postprocessing step may insert the
    index.
    """
    return np.where(row == index, row.dtype.type(0), row) if row.dtype.kind in "iuf" else row


def _copy(inputs: Inputs) -> Inputs:
    """Returns a read-only copy; a dataset's batches are also read-only."""
    copied = {name: np.array(rows) for name, rows in inputs.items()}
    for rows in copied.values():
        rows.setflags(write=False)
    return copied


class _Change:
    """Makes batches that differ slightly from a given batch and from each other.

    If the inputs contain floats, changes each float by at most CHANGE times its array's range, and keeps the float
    within the range. Otherwise, takes the input with the most distinct integers, and replaces one integer per sample
    with another integer from that input.
    """

    def __init__(self, inputs: Inputs) -> None:
        self._inputs = inputs
        self._random = np.random.default_rng()
        self._steps: dict[str, Array] = {}
        for name, rows in inputs.items():
            if rows.dtype.kind == "f" and rows.size and np.isfinite(rows).all():
                low, high = float(rows.min()), float(rows.max())
                if high > low:
                    noise = self._random.uniform(-1, 1, rows.shape) * (CHANGE * (high - low))
                    step = noise.astype(rows.dtype)
                    outside = (rows + step < low) | (rows + step > high)
                    self._steps[name] = np.where(outside, -step, step)
        values = {name: np.unique(rows) for name, rows in inputs.items() if rows.dtype.kind in "iu"}
        self._integers = max(values, key=lambda name: len(values[name]), default="")
        self._values = values.get(self._integers, np.zeros(0))

    @property
    def works(self) -> bool:
        return bool(self._steps) or len(self._values) > 1

    def next(self) -> Inputs:
        changed = dict(self._inputs)
        for name, step in self._steps.items():
            share = step.dtype.type(self._random.uniform(0.5, 1))
            changed[name] = self._inputs[name] + share * step
        if not self._steps:
            rows = np.array(self._inputs[self._integers])
            flat, values = rows.reshape(len(rows), -1), self._values
            samples = np.arange(len(rows))
            places = self._random.integers(flat.shape[1], size=len(rows))
            at = np.searchsorted(values, flat[samples, places])
            steps = self._random.integers(1, len(values), size=len(rows))
            flat[samples, places] = values[(at + steps) % len(values)]
            changed[self._integers] = rows
        return changed
