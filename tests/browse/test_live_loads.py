"""The plot of the loads that a search in progress has tried."""

import json
from pathlib import Path

import pytest

from harness.browse.index import Entry
from harness.browse.live.loads import tried_loads

TIMES = {"p50_ns": 2e6, "p90_ns": 3e6, "mean_ns": 2e6}
KNOWN = {"share": None, "mean_batch": 1.0, "busy_share": 0.5, "model_per_s": None}
TEXTS = {"reasons": (), "doubts": (), "folder": "", "queries": 1, "late": 0}


def point(rate: float, p99_ms: float) -> dict[str, object]:
    rates = {"rate_per_s": rate, "scheduled_per_s": rate, "completed_per_s": rate}
    verdict = {"verdict": "VALID" if p99_ms < 10 else "INVALID", "p99_ns": p99_ms * 1e6}
    return {**rates, **TIMES, **KNOWN, **TEXTS, **verdict}


def sweep(folder: Path, *points: dict[str, object]) -> Entry:
    content = {
        "config": {"scenario": "server", "backend": "ort"},
        "model": "digits",
        "slo": "p99=10ms",
        "peak": None,
        "peak_is_measured": False,
        "knee": None,
        "points": points,
        "highest_valid": 100.0,
    }
    (folder / "curve").mkdir()
    (folder / "curve/sweep.json").write_text(json.dumps(content))
    return Entry("curve", "", study="sweep")


def test_lines_crosses_and_bound_of_a_sweep(tmp_path: Path) -> None:
    title, text = tried_loads(tmp_path, sweep(tmp_path, point(100, 4), point(200, 40)))
    assert title == "Latency against requested rate"
    plot = json.loads(text)
    assert plot["titles"]["y"] == "latency, ms"
    assert (plot["log"], plot["bound"]) == (["y"], 10)
    marks = {trace["name"]: trace["mark"] for trace in plot["traces"]}
    assert marks == {"p50": "", "p90": "", "p99": "", "INVALID": "✕"}
    points = {trace["name"]: trace["points"] for trace in plot["traces"]}
    assert points["p99"] == [[100, 4, ""], [200, 40, ""]]
    assert points["INVALID"] == [[200, 40, ""]]


def test_a_value_that_is_unknown_is_left_out(tmp_path: Path) -> None:
    unknown = {**point(200, 4), "p99_ns": None}
    plot = json.loads(tried_loads(tmp_path, sweep(tmp_path, point(100, 4), unknown))[1])
    assert [len(trace["points"]) for trace in plot["traces"]] == [2, 2, 1]


@pytest.mark.parametrize("study", ["", "tune", "sweep"])
def test_without_a_plot_of_loads_there_are_no_data(tmp_path: Path, study: str) -> None:
    (tmp_path / "curve").mkdir()
    for verb in ("sweep", "tune"):
        (tmp_path / f"curve/{verb}.json").write_text("{}")
    assert tried_loads(tmp_path, Entry("curve", "", study=study or None)) == ("", "")
