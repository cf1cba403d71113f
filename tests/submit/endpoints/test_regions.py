"""Regions, cohorts and the choice of points, compared with test vectors of MLCommons' checker."""

import pytest

from harness.errors import ConfigError
from harness.submit.endpoints import points
from harness.submit.endpoints.cohorts import Cohort
from harness.submit.endpoints.regions import HIGH, LOW, MARGIN, MEDIUM, ULTRA_LOW, matched, regions
from harness.submit.endpoints.request import Request, make_request
from harness.submit.endpoints.tables import adoptable, drafters, models
from tests.builders.submit.endpoints import REQUEST, SAMPLES


def request(**changes: object) -> Request:
    return make_request({**REQUEST, **changes})


@pytest.mark.parametrize(
    ("c_max", "c_min", "low", "medium", "high", "margin"),
    [
        (64, 1, "2-5", "6-17", "18-64", "65-71"),
        (64, 32, "33-35", "36-42", "43-64", "65-71"),
        (128, 4, "5-9", "10-29", "30-128", "129-141"),
        (256, 1, "2-7", "8-41", "42-256", "257-282"),
        (1024, 16, "17-26", "27-117", "118-1024", "1025-1127"),
        (8192, 32, "33-52", "53-437", "438-8192", "8193-9012"),
        (1000000, 1, "2-101", "102-10001", "10002-1000000", "1000001-1100000"),
        (33, 32, "33-33", "empty", "empty", "34-37"),
        (34, 32, "33-33", "34-34", "empty", "35-38"),
    ],
)
def test_regions_equal_the_checkers(
    c_max: int, c_min: int, low: str, medium: str, high: str, margin: str
) -> None:
    bands = regions(c_max, c_min).bands
    assert [str(bands[name]) for name in (LOW, MEDIUM, HIGH, MARGIN)] == [low, medium, high, margin]


@pytest.mark.parametrize(("c_max", "c_min"), [(32, 1), (64, 0), (64, 33)])
def test_limits_outside_their_range_are_refused(c_max: int, c_min: int) -> None:
    with pytest.raises(ValueError, match="but must be"):
        regions(c_max, c_min)


def test_each_concurrency_up_to_the_margin_has_one_region() -> None:
    for c_max in (35, 64, 100, 257):
        found = regions(c_max, 1)
        last = found.bands[MARGIN].last
        assert all(found.of(c) is not None for c in range(1, last + 1))
        assert found.of(last + 1) is None


def test_an_override_narrows_the_ultra_low_region() -> None:
    assert regions(64, 4).covered(16) == [ULTRA_LOW, MEDIUM]
    assert regions(64, 4, overridden=True).covered(16) == [MEDIUM]


def test_the_window_is_shorter_up_to_32() -> None:
    found = regions(64, 1)
    assert [found.least_s(c) for c in (1, 32, 33, 64)] == [600, 600, 1200, 1200]
    assert found.least_s(64, agentic=True) == 2400


def test_a_result_covers_one_region() -> None:
    owners = matched({4: [ULTRA_LOW, LOW], 16: [ULTRA_LOW, MEDIUM]})
    assert sorted(owners.values()) == [4, 16]
    assert len(matched({1: [ULTRA_LOW], 4: [ULTRA_LOW, LOW], 16: [ULTRA_LOW, MEDIUM]})) == 3


@pytest.mark.parametrize("c_max", [34, 33])
def test_empty_regions_are_refused_by_the_plan(c_max: int) -> None:
    with pytest.raises(ConfigError, match="leaves no concurrency for the region"):
        points.curve(request(points=(), c_min=32, c_max=c_max), c_max, SAMPLES)


@pytest.mark.parametrize("c_max", [36, 40, 64, 100, 256, 1024, 100_000])
@pytest.mark.parametrize("c_min", [0, 1, 8])
def test_chosen_points_cover_every_region_with_separate_accuracy_runs(
    c_max: int, c_min: int
) -> None:
    curve = points.curve(request(points=(), c_min=c_min, c_max=c_max), c_max, SAMPLES)
    assert len(curve.points) == 7
    scored = [p for p in curve.points if p.is_accuracy]
    assert len(scored) == 4
    options = {p.concurrency: curve.regions.covered(p.concurrency) for p in scored}
    assert set(matched(options, [c_max])) == {ULTRA_LOW, LOW, MEDIUM, HIGH}
    assert [p.offline for p in curve.points] == [""] * 6 + ["elected"]


def test_a_dedicated_offline_point_is_an_eighth_point() -> None:
    curve = points.curve(request(points=(), offline="dedicated"), 64, SAMPLES)
    assert len(curve.points) == 8
    last = curve.points[-1]
    assert (last.concurrency, last.offline, last.is_accuracy) == (13368, "dedicated", True)
    with pytest.raises(ConfigError, match="but 64 is also in --points"):
        points.curve(request(points=(), offline="dedicated"), 64, 64)


@pytest.mark.parametrize(
    ("chosen", "text"),
    [
        ((1, 2, 3, 4, 5, 6, 7), "no point in these regions: high 18-64"),
        ((1, 4, 16, 20, 64), "gives 5 points"),
        ((1, 4, 8, 16, 32, 48, 72), "above the margin"),
        ((1, 4, 8, 16, 32, 48, 63), "Offline is elected at C_max 64"),
    ],
)
def test_points_that_the_rules_refuse_are_refused(chosen: tuple[int, ...], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        points.curve(request(points=chosen), 64, SAMPLES)


def test_agentic_curves_have_no_offline_point() -> None:
    curve = points.curve(request(model="kimi-k3"), 64, SAMPLES)
    assert [p.offline for p in curve.points] == [""] * 7
    assert curve.points[-1].least_s == 2400
    with pytest.raises(ConfigError, match="not for agentic"):
        request(model="kimi-k3", offline="elected")


def test_cohorts_follow_each_other_over_a_year() -> None:
    found = Cohort.parse("2026-11-C1").following(4)
    assert list(map(str, found)) == ["2026-11-C1", "2026-12-C0", "2026-12-C1", "2027-01-C0"]


@pytest.mark.parametrize("text", ["2026-13-C0", "2026-10-C2", "2026-1-C0", "", "2026-10"])
def test_other_words_are_not_cohorts(text: str) -> None:
    with pytest.raises(ValueError, match="is not a cohort"):
        Cohort.parse(text)


@pytest.mark.parametrize(
    ("cohort", "sets"),
    [("2026-10-C0", 0), ("2026-10-C1", 1), ("2026-11-C1", 1), ("2026-12-C0", 1), ("2026-12-C1", 0)],
)
def test_a_seed_set_may_be_adopted_for_four_cohorts(cohort: str, sets: int) -> None:
    assert len(adoptable(Cohort.parse(cohort))) == sets


def test_a_cohort_without_seeds_is_refused() -> None:
    with pytest.raises(ConfigError, match="has no seed set"):
        _ = request(cohort="2027-05-C0").seeds


def test_drafters_may_be_used_two_cohorts_after_approval() -> None:
    assert str(drafters("kimi-k3")[0].earliest()) == "2026-10-C1"
    assert drafters("llama3_1-8b") == ()


def test_targets_are_a_share_of_the_references() -> None:
    assert models()["llama3_1-8b"].least["rouge1"] == pytest.approx(38.391408)
    assert models()["llama3_1-8b"].ranges["gen_len"][1] == pytest.approx(8984408.4)
