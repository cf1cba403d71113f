"""One module decides for all parts of the harness how similar two answers are."""

import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from harness.loadgen.answers import is_close
from harness.results.agreement import (
    _is_alike,
    decode,
    distance,
    has_same_label,
    is_first_equal,
    limits,
)
from harness.search.grid.same_network.divergence import divergence
from harness.types import Array
from tests.builders.support import present

ROOT = Path(__file__).parents[2]
rows = arrays.arrays(np.float32, st.integers(1, 8), elements=st.floats(-1e3, 1e3, width=32))


def floats(*values: float) -> Array:
    return np.array(values, np.float32)


@given(rows)
def test_answer_agrees_with_itself_by_every_measure(row: Array) -> None:
    assert is_close(row, row, 0.0)
    assert has_same_label(row, row)
    assert is_first_equal(row.tobytes(), row.tobytes(), "float32")
    apart = present(distance([(row, row)]))
    assert apart.mean == 0
    assert _is_alike(row, row, 0.0)


@given(rows, st.floats(1e-3, 1e3))
def test_the_relative_distance_does_not_depend_on_the_unit(row: Array, factor: float) -> None:
    ours = row.astype(np.float64) + 1e4
    theirs = ours * np.where(np.arange(len(row)) % 2, 1.01, 0.98)
    plain, scaled = (distance([(ours * k, theirs * k)]) for k in (1.0, factor))
    assert present(scaled).relative == pytest.approx(present(plain).relative)


def test_answers_of_other_types_or_lengths_have_no_distance() -> None:
    assert distance([]) is None
    assert distance([(np.array([1]), np.array([1]))]) is None
    assert distance([(floats(1), floats(1)), (floats(1, 2), floats(1))]) is None
    # Integers are either equal or different, whatever the tolerance.
    assert not is_close(np.array([1]), np.array([1]), 1.0)
    assert not is_close(floats(1), floats(1, 2), 1.0)


def test_masked_scores_hide_no_difference() -> None:
    """Bug: if half of the scores were -Inf, any two answers counted as close."""
    masked = floats(-np.inf, -np.inf, 2)
    assert is_close(masked, masked, 1e-3)
    assert not is_close(floats(-np.inf, -np.inf, 3), masked, 1e-3)
    assert not is_close(floats(-np.inf, 0, 2), masked, 1e-3)


def test_a_payload_that_holds_no_whole_number_of_elements_is_bytes() -> None:
    assert decode(floats(1, 2).tobytes(), "float32").tolist() == [1, 2]
    assert decode(b"\x01\x02\x03", "float32").tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("ours", "theirs", "far", "alike"),
    [
        (floats(1, 0), floats(1.005, 0), 0.01, True),
        # The label is the same in both answers, but the scores differ.
        (floats(1, 0), floats(1.05, 0), 0.01, False),
        (floats(1, 0), floats(1.05, 0), 0.1, True),
        (floats(1, 0), floats(np.nan, 0), 0.1, False),
        (floats(0, 0), floats(1e-6, 0), 0.01, True),
        (floats(0, 0), floats(1, 0), 0.01, False),
        (floats(1), floats(1, 1), 0.1, False),
        (np.array([7]), np.array([7], np.int32), 0.01, True),
        (np.array([7]), np.array([8]), 0.5, False),
    ],
)
def test_answers_agree_within_the_tolerance(
    ours: Array, theirs: Array, far: float, alike: bool
) -> None:
    assert _is_alike(ours, theirs, far) is alike


def test_a_narrow_precision_may_differ_by_more() -> None:
    assert limits("float32") == limits("float64") == limits("none")
    assert limits("bfloat16") == limits("float16") == limits("int8")
    assert limits("int8").share < limits("float32").share
    assert limits("int8").far > limits("float32").far


def test_the_grids_divergence_is_the_same_distance() -> None:
    ours, theirs = np.array([[3.0, 4.0], [0.0, 5.0]]), np.array([[3.0, 4.5], [0.0, 5.0]])
    found = present(divergence(ours, theirs))
    apart = present(distance([(ours, theirs)]))
    assert found.relative_l2 == pytest.approx(apart.relative)
    assert found.relative_l2 == pytest.approx(0.5 / 50**0.5)


@pytest.mark.parametrize(
    "name",
    [
        "results/verdict/answers_check",
        "results/compare/compare",
        "search/grid/same_network/divergence",
        "explain/advise/accuracy",
        "submit/rules/tree/verify",
    ],
)
def test_everything_that_compares_answers_does_it_here(name: str) -> None:
    """Bug: the harness contained five definitions of how similar two answers are."""
    source = (ROOT / "harness" / f"{name}.py").read_text(encoding="utf-8")
    assert "from harness.results.agreement import" in source
    assert not re.search(r"linalg\.norm|isclose|frombuffer", source)
