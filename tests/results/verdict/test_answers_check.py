"""The answers of the performance run are compared with the answers of the accuracy run."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.core.codes import Reason
from harness.loadgen.logs import ACCURACY, AccuracyLogError
from harness.results.verdict import model_doubts, reasons
from harness.results.verdict.answers_check import LOGGED, Compared, compare
from harness.types import Array


def written(folder: Path, rows: list[tuple[int, bytes]]) -> Path:
    """Writes answers at the positions 0, 1, ... of a run, and returns the path."""
    folder.mkdir()
    content = [{"seq_id": i, "qsl_idx": s, "data": d.hex()} for i, (s, d) in enumerate(rows)]
    (folder / ACCURACY).write_text(json.dumps(content))
    return folder / ACCURACY


def places(*samples: int) -> dict[int, int]:
    return dict(enumerate(samples))


def floats(*values: float) -> bytes:
    row: Array = np.array(values, np.float32)
    return row.tobytes()


def label(value: int) -> bytes:
    return value.to_bytes(8, "little")


def test_labels_must_be_equal(tmp_path: Path) -> None:
    right = written(tmp_path / "a", [(0, label(3)), (1, label(4)), (2, label(5))])
    found = written(tmp_path / "p", [(1, label(4)), (2, label(6)), (0, label(3)), (2, label(5))])
    assert compare(found, right, places(1, 2, 0, 2), "int64", 10.0) == Compared(
        4, 1, "sample 2: 6, 5"
    )


@pytest.mark.parametrize(
    ("payload", "differs"),
    [
        (floats(1.0, 200.0), 0),
        (floats(1.0009, 200.1), 0),
        (floats(1.5, 200.0), 1),
        (floats(1.0, 201.0), 1),
        (floats(1.0), 1),
        (floats(float("nan"), 200.0), 1),
        (b"", 1),
        (b"123", 1),
    ],
)
def test_floats_may_differ_by_the_tolerance(payload: bytes, differs: int, tmp_path: Path) -> None:
    right = written(tmp_path / "a", [(7, floats(1.0, 200.0))])
    found = written(tmp_path / "p", [(7, payload)])
    assert compare(found, right, places(7), "float32", 1e-3).differing == differs


IDENTIFIED: dict[str, tuple[list[tuple[int, tuple[float, ...]]], int]] = {
    "the same answers": ([(5, (0, 1, 0.5, 0.25)), (6, (0, 0, 0.75))], 0),
    "rounded answers": ([(5, (0, 1, 0.50001, 0.25))], 0),
    "another answer": ([(5, (0, 1, 0.5, 0.3))], 1),
    "another sample's answer": ([(0, (0, 1, 0.75))], 1),
    "an unknown sample": ([(0, (3, 1, 0.75))], 1),
    "an identity alone": ([(0, (0, 0))], 1),
}


@pytest.mark.parametrize("name", IDENTIFIED)
def test_answers_with_an_identity_are_found_by_it(name: str, tmp_path: Path) -> None:
    """LoadGen's sample numbers differ from the dataset's, and the accuracy run's answers end with labels."""
    rows, differing = IDENTIFIED[name]
    accuracy = [(0, floats(0, 0, 0.75, 1, 1, 1)), (1, floats(0, 1, 0.5, 0.25, 1, 0, 1, 1, 2))]
    right = written(tmp_path / "a", accuracy)
    found = written(tmp_path / "p", [(sample, floats(*row)) for sample, row in rows])
    compared = compare(found, right, {}, "float32", 1e-3, identity_bytes=8)
    assert (compared.answers, compared.differing) == (len(rows), differing)
    assert compared.misplaced == 0
    assert compared.first.startswith("sample ") == bool(differing)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_the_tolerance_goes_with_the_answers_size(scale: float, tmp_path: Path) -> None:
    """Ten thousand classes share a probability of 1, so that differences of 1e-4 matter."""
    random = np.random.default_rng(3)
    row = random.random(10_000) * scale
    right = written(tmp_path / "a", [(0, floats(*row))])
    same = written(tmp_path / "s", [(0, floats(*(row * 1.0005)))])
    other = written(tmp_path / "o", [(0, floats(*random.permutation(row)))])
    assert compare(same, right, places(0), "float32", 1e-3).differing == 0
    assert compare(other, right, places(0), "float32", 1e-3).differing == 1


def test_a_sample_that_the_accuracy_run_has_not_answered_differs(tmp_path: Path) -> None:
    right = written(tmp_path / "a", [(0, label(3))])
    found = written(tmp_path / "p", [(1, label(4))])
    assert compare(found, right, places(1), "int64", 0.0) == Compared(1, 1, "sample 1: 4, 0 bytes")


def test_an_answer_of_another_sample_than_the_journals_is_misplaced(tmp_path: Path) -> None:
    """A plug-in writes an answer log with right answers to samples that were not requested."""
    right = written(tmp_path / "a", [(0, label(3)), (1, label(4))])
    found = written(tmp_path / "p", [(0, label(3)), (0, label(3)), (1, label(4))])
    compared = compare(found, right, places(0, 1), "int64", 0.0)
    assert (compared.differing, compared.misplaced) == (0, 2)
    (reason,) = reasons.answers(compared, 0, drawn=False)
    assert reason.code == "numbers-disagree"
    assert reason.text.startswith("2 of 3 logged answers belong to a different sample")


def test_a_missing_log_is_an_error(tmp_path: Path) -> None:
    right = written(tmp_path / "a", [])
    with pytest.raises(AccuracyLogError, match="cannot be read"):
        compare(tmp_path / ACCURACY, right, {}, "int64", 0.0)


def test_drawn_answers_may_differ_but_belong_to_their_sample() -> None:
    assert not list(reasons.answers(Compared(500, 400, "sample 3: 1, 2"), 0, drawn=True))
    (reason,) = reasons.answers(Compared(500, 400, "", misplaced=1), 0, drawn=True)
    assert reason.code == "numbers-disagree"


def test_only_more_than_the_manifest_allows_is_a_reason() -> None:
    found = Compared(500, 2, "sample 3: 1, 2")
    assert not list(reasons.answers(found, 2, drawn=False))
    (reason,) = reasons.answers(found, 1, drawn=False)
    assert reason.code == "answers-differ"
    assert reason.text == (
        "2 of 500 answers of the performance run differ from the accuracy run's (allowed 1); "
        "performance, accuracy: sample 3: 1, 2"
    )


def test_few_compared_answers_are_a_doubt() -> None:
    (doubt,) = model_doubts.few_compared(99, LOGGED)
    assert doubt == Reason(
        "few-compared",
        "only 99 answers of the performance run were compared with the accuracy run's, but 100 are "
        "needed: raise --duration or --queries",
    )
    assert not list(model_doubts.few_compared(100, LOGGED))
    assert not list(model_doubts.few_compared(100, 120))


def test_answers_too_large_to_compare_many_are_not_blamed_on_the_duration() -> None:
    (doubt,) = model_doubts.few_compared(30, 32)
    assert doubt.text.endswith(
        "100 are needed: LoadGen has memory for 32 of these answers: add a postprocess step that "
        "shrinks them"
    )
