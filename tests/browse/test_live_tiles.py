"""The numbers at the top of a live page."""

from typing import Any

import pytest

from harness.browse.live.tiles import (
    AT_LEAST,
    UNKNOWN,
    final_tiles,
    live_tiles,
    opening_tiles,
)
from harness.core.codes import HOPELESS
from harness.results.pages.tiles import Tile, html
from tests.browse.looks import look
from tests.browse.test_points import buckets


def shown(state: object, **latest: float) -> dict[str, Tile]:
    found = live_tiles(
        state,  # type: ignore[arg-type]
        lambda chart, _: latest.get(chart),
    )
    return {tile.label: tile for tile in found}


@pytest.mark.parametrize(("bound_s", "is_late"), [(0.05, False), (0.005, True)])
def test_the_percentile_of_the_slo_stands_next_to_its_bound(
    bound_s: float, *, is_late: bool
) -> None:
    state = look(1.0, latency=buckets([0.01] * 200), bounds_s=[("p95", bound_s)])
    found = shown(state)
    assert [*found][:2] == ["p95 latency", "p50 latency"]
    tile = found["p95 latency"]
    assert tile.is_bad == is_late
    assert tile.about == ("above the 5 ms allowed" if is_late else "of 50 ms allowed")


def test_a_percentile_near_its_bound_is_doubtful() -> None:
    state = look(1.0, latency=buckets([0.01] * 200), bounds_s=[("p95", 0.0105)])
    tile = shown(state)["p95 latency"]
    assert (tile.is_bad, tile.is_doubtful) == (False, True)
    assert tile.about == "of 10500 us allowed, at most 10 % left"
    assert '<dd class="doubt">' in html([tile])
    assert '<dd class="reason">' in html([tile._replace(is_bad=True)])


@pytest.mark.parametrize(("late", "is_bad"), [(10, False), (11, True)])
def test_the_late_queries_stand_next_to_those_that_the_slo_allows(
    late: int, *, is_bad: bool
) -> None:
    latency = buckets([0.01] * 1000 + [0.5] * late)
    state = look(1.0, latency=latency, bounds_s=[("p99", 0.05)], planned=2010.0)
    tile = shown(state)["Late"]
    assert (tile.number, tile.is_bad) == (f"≥\u202f{late} queries", is_bad)
    # Bug: the tile allowed 20, which is 1 %, but LoadGen's early stopping allows 10.
    assert tile.about == "p99 allows at most 10 of 2,010, by early stopping"
    # Bug: the tile allowed 10 beside the reason of the verdict, which allowed 20.
    many = shown(state._replace(totals=state.totals._replace(latency=buckets([0.5] * 21))))["Late"]
    assert (many.about, many.is_bad) == ("p99 allows at most 20 of 2,010", True)
    # Of two bounds, the one that is missed by most counts, whatever their order.
    for bounds_s in ([("p50", 1.0), ("p99", 0.05)], [("p99", 0.05), ("p50", 1.0)]):
        two = look(1.0, latency=latency, bounds_s=bounds_s, planned=2010.0)
        assert shown(two)["Late"] == tile
    # Neither an accuracy phase, nor Offline, nor a run without a bound is judged.
    assert "Late" not in shown(state._replace(scenario="offline"))
    assert "Late" not in shown(state._replace(phase="accuracy"))
    assert "Late" not in shown(look(1.0, latency=latency, planned=2010.0))


def test_a_hopeless_run_shows_no_number_within_its_bound() -> None:
    """Bug: the queries that were answered before the end met the bound, and so did the tiles."""
    result = {
        "scenario": "server",
        "slo": "p99=50ms",
        "reasons": [{"code": HOPELESS}],
        "latency_ns": {"p50": 1e6, "p99": 30e6},
        "goodput": {"slos": [{"slo": "p99=50ms", "late": 9, "of": 1000}]},
        "queries": {"samples_issued": 1000, "samples_answered": 1000, "late": 9},
    }
    found = {tile.label: tile for tile in final_tiles(result)}
    assert found["p99 latency"].about == "of the queries that were answered"
    late = found["Late"]
    assert (late.number, late.is_bad) == (f"{AT_LEAST}9 queries", True)
    assert late.about == "too many, so the run was ended"


def test_the_tiles_have_their_places_before_the_first_query() -> None:
    asked = {"scenario": "server", "slo": "p99=50ms", "target_qps": 10.0}
    opening = opening_tiles(asked)
    state = look(1.0, latency=buckets([0.01] * 200), bounds_s=[("p99", 0.05)], planned=2010.0)
    assert [tile.label for tile in opening] == [*shown(state)]
    assert {tile.number for tile in opening} == {UNKNOWN}
    assert opening[0].about == "of 50 ms allowed"
    assert "Late" not in [tile.label for tile in opening_tiles({"scenario": "single-stream"})]
    assert "Late" in [tile.label for tile in opening_tiles({"scenario": "server"})]


def test_a_huge_number_of_queries_does_not_stop_the_page() -> None:
    """Bug: a broken result with 4e13 queries took 11 s."""
    state = look(1.0, latency=buckets([0.01] * 200), bounds_s=[("p90", 0.05)], planned=4e13)
    assert shown(state)["Late"].number == "0 queries"


def test_latencies_in_the_bucket_of_the_bound_do_not_count_as_late() -> None:
    state = look(1.0, latency=buckets([0.05005] * 9), bounds_s=[("p99", 0.05)], planned=2010.0)
    assert shown(state)["Late"].number == "0 queries"


def test_a_number_within_its_bound_has_no_colour() -> None:
    """Bug: it was green at first, and black as soon as other programs used the cores."""
    state = look(1.0, latency=buckets([0.01] * 200), bounds_s=[("p95", 0.05)])
    tile = shown(state)["p95 latency"]
    assert not tile.is_doubtful
    assert "<dd>" in html([tile])


def test_a_run_without_a_bound_has_no_colour() -> None:
    tile = shown(look(1.0, latency=buckets([0.01] * 200)))["p99 latency"]
    assert (tile.about, tile.is_bad, tile.is_doubtful) == ("", False, False)


def test_a_token_run_has_its_tokens_and_token_times() -> None:
    times = {"ttft": buckets([0.1] * 200), "tpot": buckets([0.01] * 200)}
    state = look(1.0, token_times=times, token_bounds_s=[("TTFT p90", 0.05)])
    state = state._replace(elapsed_s=2.0, totals=state.totals._replace(tokens=1024.0))
    found = shown(state, tokens=600.0)
    # Bug: the page emphasised the latency of whole answers, which no SLO limits.
    assert next(iter(found)) == "TTFT p90"
    assert found["Answer tokens"].number == "512 tokens/s"
    assert found["Answer tokens"].about == "600 in the last second"
    assert found["TTFT p90"].is_bad
    assert found["TTFT p90"].about.startswith("above the 50 ms allowed; p50 ")
    assert not found["TPOT p99"].is_bad
    assert not any(label.startswith("p50") for label in found)
    assert "tokens" not in " ".join(shown(look(1.0)))


def test_a_percentile_of_few_answers_states_their_number() -> None:
    few = shown(look(1.0, latency=buckets([0.01] * 7), bounds_s=[("p99", 0.05)]))
    assert few["p99 latency"].about.endswith("of 50 ms allowed; of 7 answers")
    assert shown(look(1.0, latency=buckets([0.01])))["p99 latency"].about == "of 1 answer"


def test_an_accuracy_phase_is_not_judged() -> None:
    """Bug: a time above the bound was red, although no SLO judges this phase."""
    state = look(1.0, latency=buckets([0.1] * 200), bounds_s=[("p99", 0.05)])
    assert shown(state)["p99 latency"].is_bad
    tile = shown(state._replace(phase="accuracy"))["p99 latency"]
    assert (tile.is_bad, tile.about) == (False, "")


def test_final_rate_of_a_query_with_several_samples_is_in_queries() -> None:
    """Bug: the final rate was eight times the live rate, because it counted samples."""
    result: dict[str, Any] = {
        "scenario": "multi-stream",
        "throughput_per_s": {"completed": 800.0},
        "queries": {"samples_per_query": 8, "samples_answered": 80, "samples_issued": 80},
    }
    final = {tile.label: tile.number for tile in final_tiles(result)}
    assert (final["Completed rate"], final["Answered"]) == ("100 queries/s", "10 queries")


def test_failures_stand_out_and_offline_has_no_latency() -> None:
    state = look(1.0, 5, scenario="offline", failed=2.0, latency=buckets([1.0] * 200))
    found = shown(state, rate=10.0)
    assert [*found] == ["Completed rate", "Answered", "In flight", "Failed"]
    assert (found["Failed"].number, found["Failed"].is_bad) == ("2 samples", True)


def test_final_numbers_take_the_places_of_the_live_numbers() -> None:
    """Bug: the tiles of a search changed their number and their labels with each run, so the charts moved."""
    times = {"ttft": buckets([0.1] * 200), "tpot": buckets([0.01] * 200)}
    bounds: dict[str, Any] = {
        "bounds_s": [("p99", 0.05)],
        "token_bounds_s": [("TTFT p90", 0.2)],
    }
    live = shown(
        look(1.0, latency=buckets([0.01] * 200), token_times=times, planned=100.0, **bounds)
    )
    result: dict[str, Any] = {
        "scenario": "server",
        "slo": "p99=50ms ttft:p90=200ms",
        "latency_ns": {"p99": 60_000_000, "p50": 10_000_000, "source": "LoadGen"},
        "tokens": {
            "ttft_ns": {"p90": 100_000_000, "p50": 90_000_000},
            "tpot_ns": {"p99": 10_000_000},
            "output_per_s": 512.0,
        },
        "throughput_per_s": {"asked": 10.0, "completed": 9.0},
        "goodput": {"slos": [{"slo": "p99=50ms", "late": 2, "of": 100}]},
        "queries": {"samples_issued": 100, "samples_answered": 98, "samples_failed": 1},
    }
    final = {tile.label: tile for tile in final_tiles(result)}
    assert [*final] == [*live]
    assert (final["p99 latency"].number, final["p99 latency"].is_bad) == ("60.0 ms", True)
    assert final["TTFT p90"].about == "of 200 ms allowed; p50 90.0 ms"
    assert (final["Late"].number, final["Late"].about) == (
        "2 queries",
        "p99 allows at most 0 of 100",
    )
    assert [final[name].number for name in ("Answered", "In flight", "Failed")] == [
        "98 queries",
        "2 samples",
        "1 query",
    ]
    # A run that ended before it measured anything has the same tiles.
    nothing = {"scenario": "server", "slo": "p99=50ms"}
    assert [tile.number for tile in final_tiles(nothing)][:3] == ["-", "-", "-"]
    offline = [tile.label for tile in final_tiles({"scenario": "offline"})]
    assert offline == ["Completed rate", "Answered", "In flight", "Failed"]
