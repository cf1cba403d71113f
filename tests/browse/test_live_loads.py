"""The plot of the loads that a search in progress has tried."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.browse import studies
from harness.browse.index import Entry
from harness.browse.live.loads import Tried, planned_plot, tried_loads
from harness.results.pages.page import Article, Figure
from harness.results.pages.plots import line
from harness.search.grid.view.page import BY_BATCH
from harness.search.peak import table
from harness.search.peak.page import tiles_so_far
from tests.browse.folders import curve, curve_point


def test_lines_crosses_and_bound_of_a_sweep(tmp_path: Path) -> None:
    tried = tried_loads(tmp_path, curve(tmp_path, curve_point(100, 4), curve_point(200, 40)))
    assert tried.title == "Latency against requested rate"
    plot = json.loads(tried.plot)
    assert plot["titles"]["y"] == "latency, ms"
    assert (plot["log"], plot["bound"]) == (["y"], 10)
    marks = {trace["name"]: trace["mark"] for trace in plot["traces"]}
    assert marks == {"p50": "", "p90": "", "p99": "", "INVALID": "cross"}
    points = {trace["name"]: trace["points"] for trace in plot["traces"]}
    assert points["p99"] == [[100, 4, "", ""], [200, 40, "", ""]]
    assert points["INVALID"] == [[200, 40, "", ""]]
    # The table has links to the runs, but no boxes, because a page in progress compares nothing.
    assert 'href="/run/curve.partial"' in tried.table
    assert "checkbox" not in tried.table


def test_a_grid_shows_the_throughput_of_its_cells(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the page of a grid in progress had no picture of its cells."""
    cells = [{"batch": batch, "throughput_per_s": 100.0 * batch} for batch in (1, 4)]
    drawn = Figure(
        BY_BATCH,
        "Bars: the interval.",
        [
            line(
                "ort",
                [c["batch"] for c in cells],
                [c["throughput_per_s"] for c in cells],
                marker={"symbol": "circle"},
            ),
            line("ort", [None], [None]),  # an entry of the legend
        ],
        {
            "xaxis": {"title": "batch, samples", "type": "log", "tickvals": [1, 4]},
            "yaxis": {"title": "samples/s"},
        },
    )
    monkeypatch.setattr(studies, "articles", lambda *_a, **_k: [Article((), [drawn], ())])
    tried = tried_loads(tmp_path, Entry("cells.partial", "", study="grid"))
    plot = json.loads(tried.plot)
    assert (tried.title, tried.about, tried.table) == (BY_BATCH, "", "")
    assert (plot["marks"], plot["log"]) == ([1, 4], ["x"])
    points = [[1, 100.0, "", ""], [4, 400.0, "", ""]]
    assert plot["traces"] == [{"name": "ort", "points": points, "mark": ""}]


def test_the_place_of_a_plot_is_kept_from_the_start(tmp_path: Path) -> None:
    """Bug: the plot of a grid moved all charts when the second cell had ended."""
    (tmp_path / "cells.partial").mkdir()
    file = tmp_path / "cells.partial/grid.json"

    def planned(study: str | None) -> str:
        return planned_plot(tmp_path, Entry("cells.partial", "", study=study))

    titles = {study: planned(study) for study in ("peak", "sweep", "tune", None)}
    latency = "Latency against requested rate"  # bug: it was announced as the plot of a peak
    assert titles == {"peak": "Loads tried", "sweep": latency, "tune": "", None: ""}
    for batches, title in (([1, 4], BY_BATCH), ([1], "")):
        file.write_text(json.dumps({"axes": {"batch": batches}}))
        assert planned("grid") == title
    file.write_text("{}")
    assert planned("grid") == ""


def test_a_value_that_is_unknown_is_left_out(tmp_path: Path) -> None:
    unknown = {**curve_point(200, 4), "p99_ns": None}
    plot = json.loads(tried_loads(tmp_path, curve(tmp_path, curve_point(100, 4), unknown)).plot)
    assert [len(trace["points"]) for trace in plot["traces"]] == [2, 2, 1]


@pytest.mark.parametrize("study", ["", "tune", "sweep"])
def test_without_a_plot_of_loads_there_are_no_data(tmp_path: Path, study: str) -> None:
    (tmp_path / "curve.partial").mkdir()
    for verb in ("sweep", "tune"):
        (tmp_path / f"curve.partial/{verb}.json").write_text("{}")
    assert tried_loads(tmp_path, Entry("curve.partial", "", study=study or None)) == Tried()


def test_a_search_without_a_peak_states_what_it_has_tried() -> None:
    """Bug: "so far no peak" was all, although three loads had passed and one had failed."""
    tried = ((100.0, None), (514.0, True), (1223.0, True), (1454.0, False))
    content: Any = {
        "unit": "queries/s",
        "probes": [{"load": x, "passed": y, "kind": "probe"} for x, y in tried],
    }
    shown = "no peak (short runs passed up to 1,223 queries/s; 1,454 queries/s failed)"
    assert table.tried_text(content) == shown
    # A load that passed in a short run failed at full length.
    content["probes"] += [{"load": 1223.0, "passed": False, "kind": "full"}]
    shown = (
        "no peak (short runs passed up to 1,223 queries/s; 1,223 queries/s failed at full length)"
    )
    assert table.tried_text(content) == shown
    content["probes"] = []
    assert table.tried_text(content) == "no peak"


def test_the_peak_so_far_lies_between_two_loads() -> None:
    """Bug: a sentence with both loads could not be read at a glance."""

    def shown(peak: float | None, *tried: tuple[float, bool | None, str]) -> list[str]:
        probes = [{"load": load, "passed": passed, "kind": kind} for load, passed, kind in tried]
        content: Any = {"unit": "queries/s", "peak": peak, "probes": probes}
        return re.findall("<dd.*?>(.*?)</dd>", re.sub("</?span.*?>", "", tiles_so_far(content)))

    # Bug: the tiles appeared with the first judged run, and moved the plot.
    nothing = ["-", "none so far", "-", "-", "none so far"]
    assert shown(None, (100, None, "calibration")) == nothing
    short = [(100, True, "probe"), (400, False, "probe"), (200, True, "probe")]
    begun = ["-", "none so far", "100 queries/s", "not confirmed", "-", "none so far"]
    assert shown(None, *short[:1]) == begun
    found = ["200 queries/s", "not confirmed", "400 queries/s", "in a short run"]
    assert shown(None, *short)[2:] == found
    # Bug: a load that passed in a short run stood above the load that had failed at full length.
    full = [*short, (200, False, "full")]
    failed = ["200 queries/s", "failed at full length", "200 queries/s", "at full length"]
    assert shown(None, *full)[2:] == failed
    # Bug: the failed load was said to lie above a full run, although none had passed.
    failed_probe: Any = {"load": 200, "passed": False, "kind": "full"}
    content: Any = {"unit": "queries/s", "peak": None, "probes": [failed_probe]}
    assert "<dt>Lowest load that failed</dt>" in tiles_so_far(content)
    content["probes"].append({"load": 150, "passed": True, "kind": "full"})
    assert "<dt>Lowest failed load above it</dt>" in tiles_so_far(content)
    full.append((150, True, "full"))
    assert shown(150, *full)[0] == "150 queries/s"
    assert shown(150, *full)[-2:] == ["200 queries/s", "at full length"]
