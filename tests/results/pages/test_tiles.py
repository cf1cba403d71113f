"""The numbers at the top of a run's page."""

import re
from typing import Any

import pytest

from harness.results.answer import answer_rows
from harness.results.pages import tiles
from harness.results.pages.tiles import Tile
from tests.builders.golden_answers import golden

TIMES = {"p50": 2_000_000, "p90": 3_000_000, "p99": 4_000_000}
TOKENS = {
    "answers": 10,
    "output_per_s": 620.4,
    "output_mean": 12.1,
    "ttft_ns": TIMES,
    "answer_ttft_ns": None,
    "tpot_ns": TIMES,
    "itl_ns": None,
}
READING = {
    "source": "rapl:psys",
    "domain": "the platform",
    "provenance": "measured",
    "joules_per_query": 0.0123,
    "joules_per_sample": 0.0045,
}


def shown(name: str, **changed: Any) -> dict[str, Tile]:
    return {tile.label: tile for tile in tiles.tiles(golden(name, **changed))}


def test_a_server_run_begins_with_its_percentile_and_the_bound() -> None:
    found = shown("server", slo="p99=1ms", latency_ns={"p99": 1_500_000, "p50": 200_000})
    assert [*found] == [
        *("p99 latency", "p50 latency", "Completed rate", "Accuracy", "Mean batch", "Cores in use"),
    ]
    late = found["p99 latency"]
    assert (late.number, late.about, late.is_bad) == ("1.50 ms", "above the 1 ms allowed", True)
    assert found["p50 latency"] == Tile("p50 latency", "200 us")


@pytest.mark.parametrize(("completed", "is_bad"), [(995.0, False), (500.0, True)])
def test_the_rate_stands_next_to_the_requested_rate(completed: float, *, is_bad: bool) -> None:
    rates = {"asked": 1000.0, "scheduled": 1001.0, "completed": completed, "source": "LoadGen"}
    rate = shown("server", throughput_per_s=rates)["Completed rate"]
    assert rate == Tile(
        "Completed rate", f"{completed:.0f} queries/s", "of 1,000 requested", is_bad
    )


def test_the_energy_names_the_meter_that_covers_it() -> None:
    power = {"readings": [READING, {**READING, "provenance": "estimated"}]}
    assert shown("server", power=power)["Energy per query"].number == "12.3 mJ"
    guessed = {"readings": [{**READING, "provenance": "estimated"}]}
    energy = shown("offline", power=guessed)["Energy per sample"]
    assert (energy.number, energy.about) == ("4.50 mJ", "estimated")


def test_a_token_run_begins_with_its_token_times() -> None:
    late = {"slo": "ttft:p90=2ms", "value_ns": 3_100_000, "late": 2, "of": 10, "met": False}
    goodput = {"per_s": 1.0, "share": 0.8, "slos": [late]}
    changed = {"tokens": TOKENS, "slo": "ttft:p90=2ms", "goodput": goodput}
    found = shown("server", **changed, power={"readings": [READING]})
    assert [*found][:4] == ["TTFT p90", "TPOT p99", "Answer tokens", "p99 latency"]
    assert found["TTFT p90"] == Tile(
        "TTFT p90", "3.10 ms", "above the 2 ms allowed; p50 2.00 ms", is_bad=True
    )
    assert (found["TPOT p99"].about, found["TPOT p99"].is_bad) == ("p50 2.00 ms", False)
    assert len(found) == tiles.MOST
    assert "Energy per query" in found


def test_a_number_that_was_not_measured_has_no_tile() -> None:
    nothing = dict.fromkeys(("latency_ns", "throughput_per_s", "measured_process", "queries"))
    score = {"value": None, "reason": "the run was stopped"}
    assert shown("server", **nothing, accuracy=score) == {}
    assert tiles.html([]) == ""
    # An accuracy run has no tiles, because its headline already shows the score.
    assert shown("server", mode="accuracy") == {}


def test_a_row_that_the_tiles_show_is_not_repeated() -> None:
    result = golden("server", tokens=TOKENS)
    rows = answer_rows(result)
    assert {"accuracy", "tokens"} <= rows.keys()
    assert rows.keys() - tiles.without_tiled(rows, tiles.tiles(result)) == {"accuracy", "tokens"}
    assert tiles.without_tiled(rows, []) == rows


def test_the_texts_of_tiles_are_escaped() -> None:
    text = tiles.html([Tile("<b>", "1 <i>", "<u>")])
    assert re.findall("<[biu]>", text) == []
    assert text.startswith('<dl class="tiles"><div><dt>')
    assert ">\u00b5s<" in tiles.html([Tile("p50", "231 us")])
