"""The area under the ROC curve, compared with its definition over pairs."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.accuracy.auc import AreaUnderCurve
from harness.types import Answer


def area(scores: list[float], labels: list[int]) -> float:
    answers = [Answer(0, np.array(scores, np.float64).tobytes())]
    return AreaUnderCurve("float64").score(answers, {0: np.array(labels)}).value


@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=40))
def test_area_is_the_share_of_pairs_in_the_right_order(rows: list[tuple[int, int]]) -> None:
    positives = [score for score, label in rows if label]
    negatives = [score for score, label in rows if not label]
    if not positives or not negatives:
        return
    won = sum((p > n) + (p == n) / 2 for p in positives for n in negatives)
    expected = won / (len(positives) * len(negatives))
    found = area([float(score) for score, _ in rows], [label for _, label in rows])
    assert found == pytest.approx(expected)


def test_frames_of_all_samples_are_ranked_together() -> None:
    answers = [
        Answer(0, np.array([0.1, 0.9], np.float32).tobytes()),
        # The third number is padding, because the second sample has only two labels.
        Answer(1, np.array([[0.2], [0.8], [0.5]], np.float32).tobytes()),
    ]
    score = AreaUnderCurve("float32").score(answers, {0: np.array([0, 1]), 1: np.array([1, 0])})
    assert score.value == 0.75
    assert (score.samples, score.lower_is_better) == (2, False)


def test_an_answer_that_is_missing_counts_as_wrong() -> None:
    answers = [Answer(0, b""), Answer(1, np.array([0.5, 0.6], np.float32).tobytes())]
    labels = {0: np.array([1, 0]), 1: np.array([0, 1])}
    assert AreaUnderCurve("float32").score(answers, labels).value == pytest.approx(0.25)


def test_nan_is_the_worst_score() -> None:
    assert area([np.nan, 0.5], [1, 0]) == 0.0
    assert area([np.nan, 0.5], [0, 1]) == 0.0


def test_labels_of_one_kind_have_no_area() -> None:
    with pytest.raises(ValueError, match="auc needs labels of both kinds, but 2 of 2 are 1"):
        area([0.1, 0.2], [1, 1])


def test_labels_that_are_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="auc needs labels that are 0 or 1, one per frame"):
        AreaUnderCurve("float32").check_labels({0: 0, 1: 2})
