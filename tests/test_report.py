"""`report`: every plot is drawn, and nothing that a run says can become part of the page's code."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.analysis.report_figures import figures
from harness.cli import main
from harness.types import Reason
from tests.support import SCENARIOS, evidence

HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'
CHROMIUM = shutil.which("chromium")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    given = ["--scenario", "multi-stream", "--backend", "null", "--mode", "performance", "--quiet"]
    assert main([*given, "--queries", "662", "--out", str(out)]) == 0
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """With names and messages as nobody should have them."""
    copy = Path(shutil.copytree(finished, tmp_path / "a <b> & 'c'"))
    result = json.loads((copy / "result.json").read_text())
    reason = Reason("late", HOSTILE)._asdict()
    result.update(verdict="INVALID", reasons=[reason], doubts=[reason], backend=HOSTILE)
    (copy / "result.json").write_text(json.dumps(result))
    return copy


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_has_its_plots_and_they_are_plain_json(scenario: str) -> None:
    made = list(figures(evidence(scenario)))
    assert len(made) == 5
    for figure in made:
        text = json.dumps([figure.data, figure.layout], allow_nan=False)
        assert json.loads(text) == [list(figure.data), figure.layout]
        assert all(len(trace["x"]) == len(trace["y"]) > 0 for trace in figure.data)


def test_the_stages_of_a_plot_sum_to_the_latency() -> None:
    run = evidence("server")
    assert run.done is not None
    (stages,) = [f for f in figures(run) if f.title == "Where the time goes"]
    slowest_ms = sum(trace["y"][-1] for trace in stages.data)
    ordered_ms = np.sort(run.done.latency_ns) / 1e6
    assert ordered_ms[-2] * 0.9 <= slowest_ms <= ordered_ms[-1] * 1.001


def test_the_window_is_loadgens_in_whatever_zone_it_was_written() -> None:
    run = evidence("server")
    assert run.done is not None
    (plot,) = [f for f in figures(run) if f.title == "Latency and rate over time"]
    (band,) = plot.layout["shapes"]
    took_s = (
        float(run.done.columns["completed_ns"].max() - run.done.columns["entry_ns"].min()) / 1e9
    )
    assert -1 < band["x0"] < 0.1
    assert band["x1"] == pytest.approx(took_s, abs=1)


def test_a_run_that_completed_nothing_has_no_plots() -> None:
    assert list(figures(evidence("server", done=None))) == []


def test_a_page_needs_no_network_and_is_escaped(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}/report.html\n"
    page = (run / "report.html").read_text()
    assert HOSTILE not in page
    assert "&lt;img src=x onerror=alert(1)&gt;" in page
    assert "<b>late</b>: &lt;/script&gt;" in page
    assert not re.search(r"(src|href)=\"(?!plotly\.min\.js\"|data:,\")", page)
    assert (run / "plotly.min.js").stat().st_size > 10**6
    assert "python -m harness --config" in page


def test_plots_hold_nothing_that_ends_a_script(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.analysis.report._plotly", lambda: "script")
    hostile = evidence("server")
    (figure, *_) = figures(hostile)
    bad = figure._replace(data=[{"name": HOSTILE, "x": [1], "y": [1]}])
    monkeypatch.setattr("harness.analysis.report.figures", lambda _: [bad])
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text().partition('id="figures">')[2]
    found: list[dict[str, Any]] = json.loads(text.partition("</script>")[0])
    assert found[0]["data"][0]["name"] == HOSTILE


def test_several_runs_need_a_place(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(run), str(run)]) == 2
    line = "harness: a report of several runs lies in none of them: pass --out FILE\n"
    assert capsys.readouterr().err == line


def test_without_plotly_the_extra_is_named(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    assert main(["report", str(run)]) == 3
    line = "harness: a report needs the module 'plotly': pip install 'mlperf-harness[report]'\n"
    assert capsys.readouterr().err == line
    assert not (run / "report.html").exists()


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here")
def test_a_browser_draws_every_plot_without_an_error(run: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    out = tmp_path / "page.html"
    assert main(["report", str(run), str(run), "--standalone", "--out", str(out)]) == 0
    options = "--headless --no-sandbox --disable-gpu --enable-logging=stderr --dump-dom"
    done = subprocess.run(
        [str(CHROMIUM), *options.split(), "--virtual-time-budget=20000", out.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    assert len(re.findall(r'class="plot js-plotly-plot"', done.stdout)) == 10
    assert (
        len(re.findall(r'class="(?:scatterlayer|barlayer)[^"]*"><g class="trace', done.stdout))
        >= 10
    )
    assert "<title>owned" not in done.stdout
