"""`report` draws every plot, and no text of a run can inject code into the page."""

import errno
import json
import re
import shlex
import shutil
import sys
from dataclasses import replace
from html import escape, unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.core.codes import CODES, Reason
from harness.core.config.parse import parse_slos
from harness.core.extras import how_to_install
from harness.core.units import NS_PER_MS, NS_PER_S, show_ns
from harness.loadgen.logs import DETAIL
from harness.machine.host_log import HostLog
from harness.machine.power.energy import PowerLog, window_ns
from harness.results.answer import answer_of
from harness.results.pages import page, timeline
from harness.results.pages.figures import figures, stage_means, token_distributions
from harness.results.pages.page import thinned
from harness.results.pages.report import article
from harness.results.pages.requests import tables
from harness.results.pages.run_table import stage_table
from harness.results.recheck import check
from harness.results.records import Samples
from harness.results.run_files import read_files
from harness.results.run_folder import ResultFolder
from harness.run.supervisor.keeper import RunKeeper
from harness.run.supervisor.metrics.exporter import Exporter
from harness.types import PowerSource
from tests.builders.edited import edit
from tests.builders.golden_answers import BUSY, LATE, PADDED, golden
from tests.builders.refusals import Said
from tests.builders.result import findings
from tests.builders.support import GOLDEN, SCENARIOS, evidence, present
from tests.golden.make_runs import FOLDERS
from tests.stand_ins.chromium import needs_chromium, shown, width_needed

HOSTILE = '</script><script>document.title="owned"</script><img src=x onerror=alert(1)>'
NO_PLOTLY = "a page with plots needs the module 'plotly': "
PACKAGE = PowerSource("rapl:package-0", "processor package", "J", wraps_at_joules=100.0)
BOARD = PowerSource("hwmon:board", "the board", "W")
MEMORY = PowerSource("rapl:dram", "memory", "J")
GUESS = PowerSource("estimate:cpu", "an estimate", "J", provenance="estimated")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("report") / "run"
    given = ["--scenario", "multi-stream", "--backend", "null", "--mode", "performance", "--quiet"]
    assert main([*given, "--queries", "662", "--out", str(out), "--no-report"]) == 0
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """Returns a run with hostile names and messages."""
    copy = Path(shutil.copytree(finished, tmp_path / "a <b> & 'c'"))
    reason = Reason("slo-missed", HOSTILE)._asdict()
    told = {"verdict": "INVALID", "reasons": [reason], "doubts": [reason], "backend": HOSTILE}
    edit(copy / "result.json", lambda said: said.update(told))
    return copy


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_scenario_has_its_plots_and_they_are_plain_json(scenario: str) -> None:
    run = evidence(scenario)
    made = list(figures(run))
    sizes = len(np.unique(present(run.done).columns["batch_size"]))
    # Bug: the axis ranged from 0.6 to 1.4 if all batches had one size.
    assert len(made) == (5 if sizes > 1 else 4)
    for figure in made:
        text = json.dumps([figure.data, figure.layout], allow_nan=False)
        assert json.loads(text) == [list(figure.data), figure.layout]
        assert all(len(trace["x"]) == len(trace["y"]) > 0 for trace in figure.data)


def test_the_stages_of_a_plot_are_shares_below_the_mean_latency() -> None:
    run = evidence("server")
    assert run.done is not None
    (stages,) = [f for f in figures(run) if f.title == "Where the time goes"]
    for shares in zip(*(trace["y"] for trace in stages.data), strict=True):
        assert sum(shares) == pytest.approx(100, rel=1e-4)
    # Bug: on an axis of times, the bars of the faster half were too short to see.
    names = stages.data[0]["x"]
    ordered_ns = np.sort(run.done.latency_ns)
    fastest_ns = ordered_ns[: len(ordered_ns) // 4].mean()
    assert names[0] == f"to p25<br>{show_ns(fastest_ns)}"
    assert names[-1].startswith("to p100<br>")


@pytest.mark.parametrize(
    ("samples", "ends"),
    [
        (3, ["p100"]),
        (200, ["p25", "p50", "p75", "p90", "p100"]),
    ],
)
def test_a_group_of_the_stages_has_ten_samples(samples: int, ends: list[str]) -> None:
    """Bug: a bar of one or two samples was as wide as the others, and seemed to show what makes the tail."""
    run = evidence("server")
    assert run.done is not None
    short = replace(run.done, columns={name: c[:samples] for name, c in run.done.columns.items()})
    (plot,) = [f for f in figures(replace(run, done=short)) if f.title == "Where the time goes"]
    assert [name.removeprefix("to ").partition("<")[0] for name in plot.data[0]["x"]] == ends


@pytest.mark.parametrize(("most", "is_log"), [(1, True), (10**6, False)])
def test_stages_of_very_different_lengths_are_marks_on_a_logarithmic_axis(
    monkeypatch: pytest.MonkeyPatch, most: int, *, is_log: bool
) -> None:
    """Bug: beside a queue of seconds, the bars of all other stages were too short to see."""
    monkeypatch.setattr("harness.results.pages.figures._MOST_BARS", most)
    plot = stage_means({"A": evidence("server"), "B": evidence("offline")})
    assert [trace["name"] for trace in plot.data] == ["A", "B"]
    assert (plot.layout["yaxis"].get("type") == "log") is is_log
    assert {trace.get("mode") for trace in plot.data} == {"markers" if is_log else None}


def test_the_stages_of_offline_are_the_ones_of_its_table() -> None:
    """Bug: the plot showed almost only `queue`, but the table gave `infer` 91 %."""
    (plot,) = [f for f in figures(evidence("offline")) if f.title == "Where the time goes"]
    table = stage_table(golden("offline"))
    assert table is not None
    assert [trace["name"] for trace in plot.data] == [row[0] for row in table.rows]
    assert "queue" not in lines(plot)
    assert "without the wait" in plot.about
    assert "The shares are of the time after the queue" in table.about


def over_time(**beside: Any) -> Any:
    drawn = figures(evidence("server"), Samples(**beside))
    (plot,) = [f for f in drawn if f.title == "Over time"]
    return plot


def lines(plot: Any) -> dict[str, Any]:
    return {trace["name"]: trace for trace in plot.data}


@pytest.mark.parametrize(("bound_ms", "values"), [(1.0, [1.0]), (1e6, []), (None, [])])
def test_the_bound_is_a_line_over_the_latency(bound_ms: float | None, values: list[float]) -> None:
    """Bug: only the distribution and the tail showed the bound."""
    run = evidence("server")
    bound_ns = None if bound_ms is None else int(bound_ms * NS_PER_MS)
    bounded = replace(run, plan=replace(run.plan, latency_bound_ns=bound_ns))
    (plot,) = [f for f in figures(bounded) if f.title == "Over time"]
    bounds = [one for one in plot.layout["shapes"] if one.get("name") == "bound"]
    assert [one["y0"] for one in bounds] == values
    titles = [plot.layout[one["yref"].replace("y", "yaxis")]["title"] for one in bounds]
    assert titles == ["latency, ms"] * len(values)


def begun_ns() -> int:
    done = present(evidence("server").done)
    return int(done.columns["scheduled_ns"].min())


def sampled() -> tuple[PowerLog, HostLog]:
    """Returns ten seconds around the golden run: 40 W from a counter that wraps, a board that was silent for 2 s and
    once drew 500 W, and an estimate. One core of the machine is busy; the run uses half of this core's time.
    """
    at = [begun_ns() - 5 * NS_PER_S + n * 50 * NS_PER_MS for n in range(200)]
    power = PowerLog(sources=(PACKAGE, BOARD, GUESS, MEMORY))
    power.series = {
        PACKAGE.name: [(t, (70 + 2 * n) % 100.0) for n, t in enumerate(at)],
        BOARD.name: [(t, 500.0 if n == 90 else 60.0) for n, t in enumerate(at) if not 40 <= n < 80],
        GUESS.name: [(t, 0.4 * n) for n, t in enumerate(at)],
    }
    host = HostLog()
    for n, t in enumerate(at[::20]):
        row = {"wall_ns": t, "mhz_cpu0": 2000.0, "mhz_cpu1": 3000.0, "celsius_a": 50.0 + n}
        row |= {f"cpu_{mode}_s": 0.0 for mode in ("nice", "system", "irq", "softirq", "steal")}
        row |= {"cpu_user_s": 1.0 * n, "cpu_idle_s": 1.0 * n}
        host.rows.append(row | ({"measured_cpu_s": 0.5 * n} if n > 3 else {}))
    return power, host


def test_power_and_machine_are_on_the_time_axis_of_the_latency() -> None:
    power, host = sampled()
    plot = over_time(power=power, host=host)
    found = lines(plot)
    assert {trace.get("xaxis", "x") for trace in plot.data} == {"x"}
    assert plot.layout["xaxis"]["anchor"] == "y6"
    assert plot.layout["yaxis6"]["title"] == "°C"
    domains = [plot.layout[f"yaxis{n}"]["domain"] for n in ("", 2, 3, 4, 5, 6)]
    assert (domains[0][1], domains[-1][0]) == pytest.approx((1, 0))
    assert all(below[1] < above[0] for above, below in pairwise(domains))
    assert found["rapl:package-0"]["y"] == pytest.approx([40.0] * 19)
    assert found["estimate:cpu (estimated)"]["y"] == pytest.approx([8.0] * 19)
    board = found["hwmon:board"]["y"]
    assert max(y for y in board if y is not None) == 500
    assert board.count(None) == 1
    assert found["all processes"]["y"] == pytest.approx([1.0] * 9)
    assert found["measured process"]["y"] == pytest.approx([0.5] * 5)
    assert found["stolen"]["y"] == [0] * 9
    assert set(found["fastest core"]["y"]) == {3.0}
    assert found["hottest sensor"]["y"][-1] == 59


def test_machine_without_readings_has_no_empty_panels() -> None:
    bare = HostLog([{"wall_ns": begun_ns() + n * NS_PER_S} for n in range(3)])
    silent = PowerLog(sources=(PACKAGE,), series={PACKAGE.name: []})
    plot = over_time(power=silent, host=bare)
    assert list(lines(plot)) == list(lines(over_time()))
    assert plot.about.endswith(" Not drawn, because the run has too few readings: power, machine.")
    assert "Not drawn" not in over_time().about
    early = HostLog([{"wall_ns": begun_ns() - n * NS_PER_S, "cpu_steal_s": 0.0} for n in (9, 8, 7)])
    assert "yaxis3" not in over_time(host=early).layout
    once = HostLog([{"wall_ns": begun_ns(), "cpu_steal_s": 0.0}])
    assert "yaxis3" not in over_time(host=once).layout


@pytest.mark.parametrize(("scenario", "unit"), [("offline", "samples/s"), ("server", "queries/s")])
def test_the_rate_over_time_counts_what_the_scenario_issues(scenario: str, unit: str) -> None:
    """Bug: the samples of Offline were called queries."""
    (plot,) = [f for f in figures(evidence(scenario)) if f.title == "Over time"]
    assert plot.layout["yaxis" if scenario == "offline" else "yaxis2"]["title"] == unit


def test_the_throughput_of_offline_comes_first_and_its_latency_last() -> None:
    drawn = list(figures(evidence("offline")))
    assert drawn[0].title == "Over time"
    assert drawn[0].data[0]["name"] == "answered"
    assert [one.title for one in drawn[-2:]] == ["Latency distribution", "Tail"]


def test_a_bar_is_one_batch_wide() -> None:
    """Bug: with few sizes, the bar for size 64 spanned 45 to 83."""
    run = evidence("server")
    done = present(run.done)
    size = np.where(done.columns["batch"] == done.columns["batch"][0], 45, 64)
    columns = {**done.columns, "batch_size": size}
    (plot,) = [
        f
        for f in figures(replace(run, done=replace(done, columns=columns)))
        if f.title == "Batch sizes"
    ]
    assert (plot.data[0]["x"], plot.data[0]["width"]) == ([45, 64], 1)
    assert plot.layout["xaxis"]["range"][0] == 0  # bug: the axis began at -20


def test_the_window_on_the_time_axis_is_loadgens() -> None:
    run = evidence("server")
    window = present(window_ns(run.log.values))
    band, *_ = over_time().layout["shapes"]
    assert band["x0"] == pytest.approx((window[0] - begun_ns()) / NS_PER_S)
    assert band["x1"] == pytest.approx((window[1] - begun_ns()) / NS_PER_S)
    first, last = over_time().layout["xaxis"]["range"]
    assert first < band["x0"] < band["x1"] < last


def test_thinning_keeps_the_extremes_of_any_number_of_points() -> None:
    rng = np.random.default_rng(1)
    y = rng.lognormal(size=100_000)
    x, kept = thinned(np.arange(100_000), y)
    assert len(x) <= 600
    assert (np.diff(x) > 0).all()
    assert (y[x] == kept).all()
    assert {y.min(), y.max()} <= set(kept)
    few = thinned(np.arange(5), y[:5])
    assert (few[1] == y[:5]).all()


@pytest.mark.parametrize(("queries", "points"), [(60, 0), (150, 0), (450, 4), (3000, 30)])
def test_a_percentile_over_time_has_100_queries_per_point(queries: int, points: int) -> None:
    """Bug: with 10 queries/s, each of 120 intervals had one query, so p50, p99 and the slowest query coincided."""
    at_s = np.linspace(0.1, 10, queries)
    latency_ns = np.full(queries, 2e6)
    latency_ns[40] = 80e6  # a single slow query is visible, even between gaps
    dots, *curves = timeline._times(at_s, latency_ns, {"p99": 0.99, "p50": 0.5}, "query")
    assert dots["mode"] == "markers"
    assert max(dots["y"]) == 80
    assert [len(curve["x"]) for curve in curves] == ([points] * 2 if points else [])


def test_the_slowest_query_is_in_every_plot_of_latency() -> None:
    run = evidence("single-stream")
    slowest_ms = present(run.done).latency_ns.max() / NS_PER_MS
    cdf, tail, time, *_ = figures(run)
    for found in (cdf.data[0]["x"], tail.data[0]["y"], lines(time)["each query"]["y"]):
        assert max(y for y in found if y is not None) == pytest.approx(slowest_ms, rel=1e-5)


def test_a_run_that_completed_nothing_has_no_plots() -> None:
    assert list(figures(evidence("server", done=None))) == []


def test_a_page_needs_no_network_and_is_escaped(run: Path, prints: Said) -> None:
    pytest.importorskip("plotly")
    assert prints("report", run) == f"{run}/report.html\n"
    text = (run / "report.html").read_text()
    assert HOSTILE not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "<b>slo-missed</b>: &lt;/script&gt;" in text
    (script,) = run.parent.glob("plotly-*.min.js")
    links = re.findall(r"(?:src|href)=\"([^\"]*)\"", text.partition('id="figures"')[0])
    files = ("result.json", "config.yaml", "environment.json", "host.csv")
    anchors = [link for link in links if link.startswith("#")]
    assert (anchors[0], anchors[-1]) == ("#doubts", "#again")
    assert {"#figure-0", "#numbers", "#settings", "#machine"} < set(anchors)
    assert all(f'id="{anchor[1:]}"' in text for anchor in anchors)
    assert [link for link in links if link not in anchors] == ["data:,", *files]
    assert f'<script src="../{script.name}"></script>' in text
    assert script.stat().st_size > 10**6
    assert (
        f"python -m harness <span>--config</span> {shlex.quote(run.name + '/config.yaml')}"
        in unescape(text)
    )


def test_the_page_repeats_a_run_of_the_default_folder_by_its_path(tmp_path: Path) -> None:
    """Bug: the command lacked the `results/` in front of the name."""
    copy = shutil.copytree(FOLDERS / "server", tmp_path / "results" / "a")
    made = article(read_files(copy, with_evidence=False), [])
    assert "python -m harness <span>--config</span> results/a/config.yaml" in "\n".join(made.tail)


@pytest.mark.slow
def test_every_run_leaves_its_report_next_to_one_common_script(
    tmp_path: Path, prints: Said
) -> None:
    pytest.importorskip("plotly")
    given = ["--scenario", "single-stream", "--backend", "null", "--mode", "performance", "--quiet"]
    given += ["--duration", "2s", "--no-metrics"]
    last = prints(*given, "--out", tmp_path / "a").splitlines()[-1]
    assert last == f"report      {tmp_path}/a/report.html"
    text = (tmp_path / "a/report.html").read_text()
    assert "Latency distribution" in text
    assert "cores busy" in text
    assert check(tmp_path / "a") == []
    (script,) = tmp_path.glob("plotly-*")
    before = script.stat().st_mtime_ns
    assert json.loads(prints(*given, "--out", tmp_path / "b", "--json"))["verdict"] == "VALID"
    assert (tmp_path / "b/report.html").is_file()
    assert [p.stat().st_mtime_ns for p in tmp_path.glob("*plotly*")] == [before]


@pytest.mark.parametrize("kind", ["file", "link"])
def test_a_script_that_somebody_else_left_is_replaced(kind: str, tmp_path: Path) -> None:
    """Bug: in a shared folder, any script of the right size was embedded into the pages."""
    pytest.importorskip("plotly")
    source, name = page.plotly_script()
    other = tmp_path / ("other" if kind == "link" else name)
    other.write_bytes(bytes(source.stat().st_size))
    if kind == "link":
        (tmp_path / name).symlink_to(other)
    page.write([], "a page", tmp_path / "page.html", script_in=tmp_path)
    assert not (tmp_path / name).is_symlink()
    assert (tmp_path / name).read_bytes() == source.read_bytes()
    assert kind == "file" or other.read_bytes() == bytes(source.stat().st_size)


@pytest.fixture
def kept(finished: Path, tmp_path: Path) -> RunKeeper:
    """Returns a run that has ended successfully, with its stored result and output."""
    power, host = sampled()
    keeper = RunKeeper(ResultFolder(tmp_path / "kept"), findings("server", None), Exporter())
    outdir = keeper.folder.subfolder("performance")
    shutil.copy(GOLDEN / "server/performance" / DETAIL, outdir)
    keeper.keep(evidence("server"), outdir)
    keeper.keep_samples(Samples(host, power))
    for name in ("config.yaml", "environment.json"):
        shutil.copy(finished / name, keeper.folder.path)
    assert keeper.conclude(0).status == 0
    return keeper


def told(kept: RunKeeper, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Returns what the report printed to stdout and stderr."""
    capsys.readouterr()
    kept.report(as_json=False)
    return capsys.readouterr()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_report_shows_power_and_the_parts_it_covers(
    kept: RunKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("plotly")
    assert told(kept, capsys) == (f"report      {tmp_path}/kept/report.html\n", "")
    text = (tmp_path / "kept/report.html").read_text()
    for words in ("processor package", "<td>measured</td>", "<td>estimated</td>", "40.0\u00a0W"):
        assert words in text
    assert "rapl:dram: no reading: the meter returned no value." in text
    assert "not an MLPerf Power result" in text


def broken(*_: object, **__: object) -> None:
    raise RuntimeError("of two\nlines")


def full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("where", "fault", "line"),
    [
        ("harness.results.pages.report.figures", broken, "RuntimeError: of two lines"),
        ("pathlib.Path.write_text", full, "{folder}/report.html cannot be written: No space left on device"),
        pytest.param("shutil.copyfile", full, "{folder}/report.html cannot be written: No space left on device", marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_failed_report_is_one_line_and_leaves_the_run_intact(
    kept: RunKeeper,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: str,
    fault: Any,
    line: str,
) -> None:
    pytest.importorskip("plotly")
    folder = tmp_path / "kept"
    before = names(folder)
    monkeypatch.setattr(where, fault)
    out, err = told(kept, capsys)
    line = line.format(folder=folder)
    assert (out, err) == ("", f"harness: no report: {line}: `report {folder}` makes one later\n")
    assert names(folder) == before
    assert [n for n in names(tmp_path) if n.startswith(".plotly")] == []


def test_missing_plotly_is_reported_in_the_table(
    kept: RunKeeper,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert told(kept, capsys) == (f"report      none: {NO_PLOTLY}{how_to_install('report')}\n", "")
    assert "report.html" not in names(tmp_path / "kept")


def test_a_run_that_could_not_be_saved_has_no_report(
    kept: RunKeeper, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.not_saved(OSError(errno.EIO, "Input/output error"))
    assert told(kept, capsys) == ("", "")
    assert "report.html" not in names(tmp_path / "kept")


def test_plots_hold_nothing_that_ends_a_script(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "script").write_text("script")
    monkeypatch.setattr(page, "plotly_script", lambda: (tmp_path / "script", "plotly.min.js"))
    hostile = evidence("server")
    (figure, *_) = figures(hostile)
    bad = figure._replace(data=[{"name": HOSTILE, "x": [1], "y": [1]}])
    monkeypatch.setattr("harness.results.pages.report.figures", lambda *_: [bad])
    assert main(["report", str(run), "--out", str(tmp_path / "page.html")]) == 0
    text = (tmp_path / "page.html").read_text().partition('id="figures">')[2]
    found: list[dict[str, Any]] = json.loads(text.partition("</script>")[0])
    assert found[0]["data"][0]["name"] == HOSTILE


@pytest.mark.parametrize("content", ["# read me\n", "<!doctype html>\n<html>\n", ""])
def test_a_page_replaces_pages_alone(
    content: str, run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `report RUN --out README.md` replaced README.md."""
    out = tmp_path / "README.md"
    out.write_text(content)
    assert main(["report", str(run), "--out", str(out)]) == 2
    assert out.read_text() == content
    assert capsys.readouterr().err == (
        f"harness: {out} already exists and is not a page of the harness, so it will not be overwritten: name a different file\n"
    )
    page = tmp_path / "page.html"
    for _ in range(2):
        assert main(["report", str(run), "--out", str(page)]) == 0


def test_the_first_lines_of_a_page_are_the_answer(run: Path, tmp_path: Path) -> None:
    """Bug: the first screen consisted of five paragraphs of doubts, without p99 and its bound."""
    result = golden("server", doubts=[BUSY, PADDED], verdict="INVALID", reasons=[LATE])
    (run / "result.json").write_text(json.dumps(result))
    out = tmp_path / "page.html"
    assert main(["report", str(run), "--out", str(out)]) == 0
    text = out.read_text().partition("<main>")[2]
    answer = answer_of(result)
    head = text.partition('id="numbers"')[0].replace("\u00a0\u00b5s", " us").replace("\u00a0", " ")
    answered = list(page.answer(answer.headline))
    for words in (answer.question, answer.advice):
        assert escape(present(words)) in head
    assert all(f'tabindex="0">{code}<' in head for code in ("busy-machine", "padded"))
    order = [*answered, "slo-missed", 'class="tiles"', 'id="doubts"', 'class="plots"']
    assert [*map(head.index, order)] == sorted(map(head.index, order))
    assert '<details id="doubts"><summary>2 doubts in full</summary>' in head
    (run / "result.json").write_text(json.dumps({**result, "doubts": [BUSY]}))
    assert main(["report", str(run), "--out", str(out)]) == 0
    assert '<details id="doubts" open><summary>1 doubt in full</summary>' in out.read_text()
    for title in ("Settings", "Machine"):
        assert f'<details><summary><h2 id="{title.lower()}">{title}</h2></summary>' in text
    for name in ("p50", "p99.9", "issue delay"):
        assert f">{name}</td>" in text


def test_an_invalid_run_states_its_advice_once() -> None:
    """Bug: the advice appeared three times: below the reason, in the row `advice`, and as the meaning of the doubt."""
    result = golden("server", doubts=[BUSY], verdict="INVALID", reasons=[LATE])
    run = read_files(FOLDERS / "server", with_evidence=False)._replace(result=result)
    text = unescape("\n".join(article(run, []).head))
    assert text.count(present(answer_of(result).advice)) == 1
    assert CODES["slo-missed"].advice.replace("`", "") not in text
    assert CODES["busy-machine"].meaning in text


def test_a_reader_without_a_mouse_or_eyes_finds_everything(run: Path) -> None:
    """Bug: no element of the page could receive the focus, and charts had neither a name nor their numbers as text."""
    pytest.importorskip("plotly")
    assert main(["report", str(run)]) == 0
    text = (run / "report.html").read_text()
    body = text.partition("</style>")[2].partition('id="figures"')[0]
    plots = re.findall(r'<div class="plot" id="plot-\d" role="img" aria-label="([^"]+)"', body)
    assert len(plots) == body.count('<details class="numbers"') >= 4
    assert "<th>" not in body
    assert body.count("<main>") == 1


def test_numbers_and_units_stay_together_on_a_page() -> None:
    assert page.typeset("p99 936 us of 50 ms (95 %: 2 to 3 us) at 20,000 queries/s, 5 servers") == (
        "p99 936\u00a0\u00b5s of 50\u00a0ms (95\u00a0%: 2 to 3\u00a0\u00b5s) at 20,000\u00a0queries/s, "
        "5 servers"
    )


def test_a_bound_beyond_all_queries_leaves_room_for_them() -> None:
    run = evidence("server")
    near, far = (
        next(figures(replace(run, plan=replace(run.plan, latency_bound_ns=bound_ns))))
        for bound_ns in (50 * NS_PER_MS, 10**6 * NS_PER_MS)
    )
    (line,) = near.layout["shapes"]
    assert (line["name"], line["label"]["text"]) == ("bound", "50 ms allowed")
    assert far.layout["shapes"] == []
    assert far.about.endswith("The bound, 1000 s, lies far outside.")


@pytest.mark.slow
@needs_chromium()
def test_the_marks_of_latency_are_read_at_a_glance(run: Path) -> None:
    """Bug: an axis was labelled 5 6 7 8 9 1 2 3, so that 2 could mean 2 ms or 20 ms."""
    pytest.importorskip("plotly")
    assert main(["report", str(run)]) == 0
    document = shown(run / "report.html").document
    marks = re.findall(r'class="(?:x|y\d?)tick"><text[^>]*>([^<]+ (?:ns|µs|ms|s))<', document)
    assert len(marks) > 10
    assert [mark for mark in marks if not re.match(r"[125]0* |\d+(\.\d+)? ", mark)] == []


@pytest.mark.slow
@needs_chromium()
@pytest.mark.parametrize("several", [False, True])
def test_a_page_of_420_pixels_does_not_scroll_sideways(
    run: Path, kept: RunKeeper, tmp_path: Path, *, several: bool
) -> None:
    pytest.importorskip("plotly")
    runs = [str(run), str(tmp_path / "kept")] if several else [str(run)]
    out = tmp_path / "page.html"
    assert main(["report", *runs, "--out", str(out)]) == 0
    assert width_needed(out, 420) == 420


def test_several_runs_need_a_place(run: Path, refuses: Said) -> None:
    line = "a report of several runs has no default place: pass --out FILE"
    assert refuses("report", run, run) == line


def test_missing_plotly_is_reported_with_its_extra(
    run: Path, monkeypatch: pytest.MonkeyPatch, refuses: Said
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert refuses("report", run, status=3) == f"{NO_PLOTLY}{how_to_install('report')}"
    assert not (run / "report.html").exists()


@pytest.mark.slow
@needs_chromium()
def test_a_browser_draws_every_plot_without_an_error(
    run: Path, kept: RunKeeper, tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    out = tmp_path / "page.html"
    assert (
        main(["report", str(run), str(tmp_path / "kept"), "--standalone", "--out", str(out)]) == 0
    )
    found = shown(out)
    assert found.console == []
    assert found.drawn == 4  # both runs share each plot, so two runs also have four plots
    assert re.findall(r'legendtext"[^>]*>([AB]): ', found.document)
    assert "<title>owned" not in found.document
    kept.report(as_json=False)
    beside = shown(tmp_path / "kept/report.html")
    assert (beside.console, beside.drawn) == ([], 5)


@pytest.mark.slow
@needs_chromium()
def test_page_without_its_script_reports_that_it_was_not_drawn(
    kept: RunKeeper, tmp_path: Path
) -> None:
    pytest.importorskip("plotly")
    kept.report(as_json=False)
    (tmp_path / "far/away").mkdir(parents=True)
    moved = (tmp_path / "kept/report.html").rename(tmp_path / "far/away/report.html")
    assert (
        "Not drawn: plotly's script, which belongs next to this page, was moved or deleted"
        in shown(moved).document
    )


def test_token_times_have_a_plot_and_a_table() -> None:
    run = evidence("server")
    assert run.done is not None
    columns = dict(run.done.columns)
    columns["first_token_ns"] = columns["scheduled_ns"] + 2 * NS_PER_MS
    columns["completed_ns"] = columns["scheduled_ns"] + 6 * NS_PER_MS
    columns["tokens"] = np.full(len(columns["order"]), 5, np.int32)
    columns["failed"][0], columns["first_token_ns"][0] = 1, 0
    run = replace(run, done=replace(run.done, columns=columns))
    slos = parse_slos("ttft:p90=3ms tpot:p99=5s p99=20ms")
    (drawn,) = (one for one in figures(run, slos=slos) if one.title == "Token time distribution")
    # The plot omits the bound of 5 s, because it is too far from the latencies of 1 and 2 ms.
    (bound,) = drawn.layout["shapes"]
    assert bound["label"]["text"] == "TTFT limit 3 ms (p90)"
    first, each = drawn.data
    # Bug: the bounds of both token times had one colour.
    assert bound["legendgroup"] == first["name"]
    assert (first["name"], each["name"]) == (
        "time to the first token (TTFT)",
        "time per further token (TPOT)",
    )
    assert ({*first["x"]}, {*each["x"]}) == ({2.0}, {1.0})
    (course,) = (one for one in figures(run, slos=slos) if one.title == "Over time")
    curves = {line["name"]: {*line["y"]} - {None} for line in course.data}
    assert (curves["TTFT p99"], curves["TPOT p99"]) == ({2.0}, {1.0})
    limits = [s for s in course.layout["shapes"] if "limit" in s.get("label", {}).get("text", "")]
    (limit,) = limits  # the bound of 5 s is too far here, too
    assert (limit["y0"], limit["legendgroup"]) == (3.0, "TTFT p99")
    titles = [one.title for one in token_distributions({"A": run, "B": run})]
    assert titles == ["Time to the first token (TTFT)", "Time per further token (TPOT)"]
    assert not list(token_distributions({"A": run, "B": evidence("server")}))
    times = {"p50": 2_000_000, "p90": 3_000_000, "p99": 4_000_000}
    known = {"ttft_ns": times, "answer_ttft_ns": None, "tpot_ns": None, "itl_ns": times}
    (table,) = tables({"tokens": known})
    assert table.rows == [("TTFT", *times.values()), ("ITL", *times.values())]
    assert list(tables({"tokens": dict.fromkeys(known)})) == []
    kept = {"answers": 9, "cached": 50, "reusable": 80, "input": 100}
    (table,) = tables({"tokens": {**known, **kept}})
    assert table.notes == ["50.0 % of the prompt tokens cached (80.0 % possible)."]
