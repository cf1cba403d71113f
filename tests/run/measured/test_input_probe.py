"""The probe after a run finds backends that cache answers, and accuses no backend that computes."""

import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from harness.loadgen.answers import AnswerRow
from harness.models.steps.postprocess import Postprocess, not_finite
from harness.results.evidence.input_probe import section
from harness.results.verdict.model_doubts import cached
from harness.results.verdict.reasons import by_index
from harness.run.measured.answerer import Answerer
from harness.run.measured.input_probe import _Change, probe
from harness.types import Array, Batch
from tests.builders.support import UNCHANGED

SAMPLES = 40
ROWS = np.random.default_rng(0).random((SAMPLES, 6), np.float32)


class Rows:
    """A dataset whose samples are rows of numbers."""

    def batch(self, indices: Sequence[int]) -> Batch:
        return Batch(len(indices), {"x": ROWS[list(indices)]})


class Model:
    """A model that computes for 1 ms."""

    def infer(self, batch: Batch) -> Any:
        time.sleep(1e-3)
        return batch.inputs["x"].sum(axis=1)


class Keeps(Model):
    """Caches the answers to the last `most` batches by their content."""

    def __init__(self, most: int) -> None:
        self.most, self.table = most, dict[bytes, Any]()

    def infer(self, batch: Batch) -> Any:
        key = batch.inputs["x"].tobytes()
        if key not in self.table:
            while len(self.table) >= self.most:
                del self.table[next(iter(self.table))]
            self.table[key] = super().infer(batch)
        return self.table[key]


class ByIndex(Model):
    def infer(self, batch: Batch) -> Any:
        super().infer(batch)
        return ROWS[sys._getframe(1).f_locals["indices"]].sum(axis=1)


class Refuses(Model):
    """Accepts only the rows of the dataset."""

    def infer(self, batch: Batch) -> Any:
        if not (batch.inputs["x"][:, None] == ROWS).all(axis=2).any(axis=1).all():
            raise KeyError("never seen")
        return super().infer(batch)


def probed(
    model: Any,
    sizes: Sequence[int] = (2,),
    loaded: int = SAMPLES,
    most_s: float = 60.0,
    **more: Any,
) -> Mapping[str, Any]:
    dataset: Any = Rows()
    same = more.get("postprocess") or UNCHANGED
    row = more.get("row") or AnswerRow((), np.dtype(np.float32))
    return probe(Answerer(model, dataset, same), row, range(loaded), sizes, most_s, 1e-3)


def codes(message: Mapping[str, Any]) -> list[str]:
    found = section(message)
    return [one.code for one in (*by_index(found), *cached(found))]


def test_a_model_that_computes_is_not_accused() -> None:
    message = probed(Model())
    assert codes(message) == []
    assert (message["samples"], message["rows"], message["by_index"], message["raised"]) == (
        2,
        8,
        0,
        "",
    )
    assert len(message["seen_ns"]) >= 8
    found: Any = section(message)
    assert found["over_again"][0] < 1.3
    assert found["over_seen"][0] < 1.3


@pytest.mark.parametrize(
    ("model", "code"),
    [
        (Keeps(10_000), "cached"),
        (Keeps(1), "cached"),
        (Refuses(), "cached"),
        (ByIndex(), "answers-by-index"),
    ],
    ids=["by content", "the last", "refuses", "by index"],
)
def test_a_backend_that_keeps_answers_is_found(model: Any, code: str) -> None:
    """Bug: the run was VALID, and listed no doubt."""
    assert codes(probed(model)) == [code]


class Draws:
    """Returns 0 or 1 at random."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def infer(self, batch: Batch) -> Any:
        return self.random.integers(2, size=batch.size).astype(np.float32)


def test_model_with_random_answers_is_not_accused() -> None:
    for seed in range(20):
        assert "answers-by-index" not in codes(probed(Draws(seed), (1,)))


def test_answer_that_a_hook_marks_with_its_index_is_not_accused() -> None:
    """The answers to two samples are equal, except for the indices that the hook writes."""

    def marked(outputs: Any, indices: Sequence[int]) -> Any:
        return np.stack([np.asarray(indices, np.float32), 0 * outputs], axis=1)

    row = AnswerRow((2,), np.dtype(np.float32))
    message = probed(Model(), postprocess=Postprocess(marked, not_finite), row=row)
    assert (message["rows"], codes(message)) == (0, [])


def test_a_hook_that_answers_by_its_index_is_found() -> None:
    """Bug: the probe passed the same index to hooks each time, so that a hook with the labels was VALID."""
    labels = np.random.default_rng(1).permutation(SAMPLES).astype(np.float32)

    def answers(_outputs: Any, indices: Sequence[int]) -> Any:
        return labels[list(indices)]

    assert codes(probed(Model(), postprocess=Postprocess(answers, not_finite))) == [
        "answers-by-index"
    ]


def test_hook_that_marks_answers_from_its_own_table_is_not_accused() -> None:
    numbers = np.random.default_rng(2).permutation(10_000)[:SAMPLES].astype(np.float32)

    def marked(outputs: Any, indices: Sequence[int]) -> Any:
        return np.stack([numbers[list(indices)], outputs], axis=1)

    row = AnswerRow((2,), np.dtype(np.float32))
    assert codes(probed(Model(), postprocess=Postprocess(marked, not_finite), row=row)) == []


def test_probe_calls_the_backend_as_in_the_run() -> None:
    names: set[str] = set()

    class Notes(Model):
        def infer(self, batch: Batch) -> Any:
            names.add(threading.current_thread().name)
            assert not batch.inputs["x"].flags.writeable
            return super().infer(batch)

    assert codes(probed(Notes())) == []
    assert names == {"loadgen"}


def test_a_size_that_takes_too_long_is_left_for_a_smaller_one() -> None:
    class PerSample(Model):
        def infer(self, batch: Batch) -> Any:
            time.sleep(5e-3 * batch.size)
            return super().infer(batch)

    assert probed(PerSample(), (32, 1), most_s=4.0)["samples"] == 1
    message = probed(PerSample(), (32, 1), most_s=0.01)
    assert message == {"reason": "a batch is too large, or takes too long for a run of this length"}
    assert (section(message), codes(message)) == (message, [])


def test_a_backend_that_becomes_slow_does_not_delay_the_end_of_the_run() -> None:
    class Slows(Model):
        calls = 0

        def infer(self, batch: Batch) -> Any:
            self.calls += 1
            time.sleep(0.1 if self.calls > 5 else 0)
            return super().infer(batch)

    start_s = time.monotonic()
    message = probed(Slows(), most_s=0.5)
    assert time.monotonic() - start_s < 5
    assert codes(message) == []


@pytest.mark.parametrize("loaded", [1, 2, 5])
def test_few_loaded_samples_are_enough(loaded: int) -> None:
    message = probed(Model(), (2,), loaded)
    assert codes(message) == []
    assert message["rows"] == (0 if loaded == 1 else 8)


def test_error_of_the_dataset_is_the_reason_for_a_missing_probe() -> None:
    message = probed(Model(), loaded=SAMPLES + 2, sizes=(SAMPLES + 1,))
    assert message["reason"].startswith("IndexError: ")


arrays = st.one_of(
    some.arrays(np.float32, (3, 4), elements=st.floats(0, 100, width=32), fill=st.nothing()),
    some.arrays(np.int64, (3, 4), elements=st.integers(0, 9), fill=st.nothing()),
    some.arrays(np.uint8, (3, 2, 2), fill=st.nothing()),
)


@given(arrays)
def test_changed_inputs_stay_in_the_range_and_differ(rows: Array) -> None:
    before = rows.copy()
    change = _Change({"x": rows})
    assert change.works == (rows.max() > rows.min())
    if change.works:
        first, second = change.next()["x"], change.next()["x"]
        assert (first.dtype, first.shape) == (rows.dtype, rows.shape)
        assert first.min() >= rows.min()
        assert first.max() <= rows.max()
        if rows.dtype.kind == "f":
            assert np.abs(first - rows).max() <= 1.001e-3 * (rows.max() - rows.min())
        else:
            changed = (first != rows).reshape(len(rows), -1)
            assert changed.sum(axis=1).tolist() == [1, 1, 1]
            assert np.isin(first, rows).all()
        assert second is not first
    assert (rows == before).all()


def test_integers_change_only_without_float_inputs() -> None:
    tokens, mask = np.arange(8).reshape(2, 4), np.ones((2, 4), np.int64)
    inputs = {"tokens": tokens, "image": np.array([[0.0, 1.0]] * 2), "mask": mask}
    changed = _Change(inputs).next()
    assert changed["tokens"] is tokens
    assert (changed["image"] != inputs["image"]).any()
    without = {name: inputs[name] for name in ("mask", "tokens")}
    changed = _Change(without).next()
    assert changed["mask"] is mask
    assert (changed["tokens"] != tokens).sum() == 2


@pytest.mark.parametrize(("rounds", "known"), [(0, False), (7, False), (8, True), (32, True)])
def test_a_ratio_needs_rounds(rounds: int, known: bool) -> None:
    message = {
        "samples": 1,
        "rows": 0,
        "by_index": 0,
        "raised": "",
        "changed_ns": [30] * rounds,
        "again_ns": [10] * rounds,
        "seen_ns": [20] * rounds,
    }
    found: Any = section(message)
    assert found["over_again"] == ([3.0, 3.0, 3.0] if known else None)
    assert [one.text.split(" took ")[1][:5] for one in cached(found)] == (
        ["3 tim"] if known else []
    )
