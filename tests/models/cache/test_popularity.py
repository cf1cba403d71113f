"""Shares of requests add up to 1, follow their distributions, and are whole numbers of slots."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.models.cache.popularity import allotted, measured, pareto, top_share, zipf


def test_zipf_is_proportional_to_the_rank() -> None:
    assert zipf(4, 1.0) == pytest.approx(np.array([12, 6, 4, 3]) / 25)
    assert zipf(5, 0.0) == pytest.approx(np.full(5, 0.2))


def test_pareto_is_the_same_for_a_seed_and_skewed_as_its_exponent_says() -> None:
    assert pareto(50, 1.16, 7).tolist() == pareto(50, 1.16, 7).tolist()
    assert pareto(50, 1.16, 7).tolist() != pareto(50, 1.16, 8).tolist()
    # With infinitely many models, the share tends to 80 %; with 20 seeds, the share varies widely.
    many = np.median([top_share(pareto(10_000, 1.16, seed)) for seed in range(20)])
    assert 0.6 < many < 0.85
    assert top_share(pareto(10_000, 5.0, 1)) < 0.35


def test_measured_counts_are_shares_and_must_count_something() -> None:
    assert measured([1, 0, 3]).tolist() == [0.25, 0.0, 0.75]
    with pytest.raises(ValueError, match="one must be above 0"):
        measured([0, 0])


def test_the_top_share_is_that_of_a_fifth_of_the_models() -> None:
    assert top_share(measured([1, 6, 1, 1, 1])) == 0.6
    assert top_share(measured([3])) == 1.0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=30).filter(any), st.integers(1, 500))
def test_slots_add_up_and_differ_by_at_most_one_from_the_share(
    counts: list[int], slots: int
) -> None:
    shares = measured(counts)
    whole = allotted(shares, slots)
    assert int(whole.sum()) == slots
    assert (np.abs(whole - shares * slots) < 1).all()
