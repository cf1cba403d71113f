"""Answers out of outputs, and NaN found in them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness.errors import ConfigError
from harness.postprocess import has_nan, postprocessor
from harness.types import Step

outputs = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 12)),
    elements=st.floats(-3, 3, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]),
)


@given(outputs)
def test_nan_is_found_whatever_the_step(rows: Any) -> None:
    wanted = bool(np.isnan(rows).any())
    for step in ("none", "argmax"):
        post = postprocessor((Step(step, {}),), None)
        assert post.has_nan(rows, post.answers(rows)) == wanted


def test_large_outputs_and_both_infinities() -> None:
    rows = np.zeros((2, 8192), np.float32)
    rows[1, 7], rows[1, 9] = np.inf, -np.inf
    assert not has_nan(rows)
    rows[0, 3] = np.nan
    assert has_nan(rows)


def test_integers_hold_no_nan() -> None:
    post = postprocessor((Step("argmax", {}),), None)
    rows = np.array([[1, 5, 2]])
    assert post.answers(rows).tolist() == [1]
    assert not post.has_nan(rows, post.answers(rows))
    assert not has_nan(rows)


def test_nan_in_an_output_that_is_not_the_answer_is_found() -> None:
    post = postprocessor((Step("argmax", {}),), "logits")
    found = {"other": np.array([[np.nan]]), "logits": np.array([[0.0, 2.0]])}
    answers = post.answers(found)
    assert answers.tolist() == [1]
    assert post.has_nan(found, answers)


def test_an_output_the_model_does_not_have() -> None:
    post = postprocessor((Step("none", {}),), "logits")
    with pytest.raises(ConfigError, match="'logits' is not among the model's: other"):
        post.answers({"other": np.zeros((1, 2))})
