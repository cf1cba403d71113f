"""The arithmetic of `overhead`: the parts add up to the whole, whatever the stages are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.results.evidence.stages import LOCAL_STAGES, REMOTE_STAGES
from harness.search.overhead import parts
from harness.search.overhead.parts import Pair, mean_of, overhead_of, pair_of
from tests.search.overhead.stand_in import in_process, served

NS = st.integers(1, 10**9)
STAGES = st.fixed_dictionaries(dict.fromkeys(LOCAL_STAGES, NS))
REMOTE = st.fixed_dictionaries(
    dict.fromkeys((s for s in REMOTE_STAGES if s != "notice"), NS), optional={"notice": NS}
)


@given(STAGES, REMOTE, NS, st.tuples(NS, NS), st.booleans())
def test_parts_sum_to_the_overhead_if_all_queries_take_equally_long(
    here: dict[str, int], there: dict[str, int], floor: int, times: tuple[int, int], told: bool
) -> None:
    pair = pair_of(in_process(here), served(there, floor, *times), reported=told)
    own = here["gather"] + here["postprocess"] + here["complete"]
    expected = sum(there.values()) - sum(here.values()) - (floor - own)
    assert pair.overhead_ns == expected
    assert sum(pair.parts_ns.values()) == expected
    found = overhead_of([pair, pair])
    assert found.explained == pytest.approx(1)
    assert sum(part.mean_ns for part in found.parts.values()) == pytest.approx(expected)
    assert found.of_model * sum(here.values()) == pytest.approx(expected)
    # A negative time in the network means that the server worked while the client was still sending.
    merged = told and there["remote"] < sum(times)
    assert (parts.SEND_AND_NETWORK in found.parts) == merged
    assert (parts.NETWORK in found.parts) == (told and not merged)
    assert (parts.REMOTE in found.parts) == (not told)


def test_client_work_of_both_cases_is_subtracted_once() -> None:
    """A null server costs nothing beyond the floor."""
    here = dict.fromkeys(LOCAL_STAGES, 0) | {"gather": 7, "infer": 20, "postprocess": 3}
    there = dict.fromkeys(REMOTE_STAGES, 0) | {"send": 7 + 10, "remote": 25, "decode": 3 + 2}
    floor = 7 + 10 + 5 + 3 + 2  # the floor's stages are: prepare, send, answer at once, decode
    pair = pair_of(in_process(here), served(there, floor, 0, 20), reported=True)
    assert pair.floor_ns == 17
    assert pair.overhead_ns == 0


def test_the_interval_is_students_over_pairs() -> None:
    """Half the interval of three values that are 1 apart is 4.303 (t, 2 degrees of freedom) times 1 / sqrt(3)."""
    mean = mean_of([-1.0, 0.0, 1.0])
    assert list(mean) == pytest.approx([0, -2.4843, 2.4843], abs=1e-3)
    assert mean_of([5.0]) == (5, None, None)


@pytest.mark.parametrize(("part_ns", "share"), [(100, 1.0), (82, 0.82), (118, 0.82), (500, 0.0)])
def test_the_explained_share_counts_overestimates_like_underestimates(
    part_ns: int, share: float
) -> None:
    pair = Pair(in_process_ns=50, served_ns=190, floor_ns=40, parts_ns={parts.SEND: part_ns})
    assert overhead_of([pair]).explained == pytest.approx(share)
