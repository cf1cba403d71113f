"""Serves every page through the whole application, without a browser, and checks contents, addresses and foreign data."""

import html
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
from starlette.testclient import TestClient

from harness.browse import comparisons, index, studies
from harness.browse.app import make_app
from harness.browse.guard import POLICY
from harness.browse.index import STUDIES, Index
from harness.browse.machines import Machines
from harness.browse.texts import brief
from harness.cli.main import main
from harness.core.codes import CODES
from harness.core.files import read_json
from harness.explain.machine import page as machine_page
from harness.explain.machine.arithmetic import QuotedPeak
from harness.results.answer import answer_of, headline_in_short
from harness.results.pages import page as pages
from harness.results.pages.page import Figure, plotly_script, typeset
from harness.results.pages.report import article
from harness.results.run_files import read_files
from harness.results.run_folder import ResultFolder, locked
from harness.results.seal import digests
from harness.search.turns import keep
from tests.browse.folders import EVIL, RUNS, edit, golden_results
from tests.golden.make_runs import FOLDERS

PAIR = "/compare?run=closed-loop&run=closed-loop-again"
MADE = read_json(FOLDERS / "single-stream/result.json")["started"][:10]
"""The day on which the golden folder was made."""

PAGES = ("/", "/run/server", PAIR, "/history", "/pareto", "/studies", "/machines")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "LASTS_S", -1.0)
    return golden_results(tmp_path / "results")


@pytest.fixture
def client(results: Path) -> TestClient:
    return TestClient(make_app(results), base_url="http://127.0.0.1:9470")


def page(client: TestClient, path: str, status: int = 200) -> str:
    answer = client.get(path)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-security-policy"] == POLICY
    return answer.text


def listed(client: TestClient, query: str = "") -> list[str]:
    found = re.findall(r'class="name"><a href="/run/([^"]+)"', page(client, f"/{query}"))
    return [html.unescape(path) for path in found]


@pytest.mark.parametrize(
    ("query", "runs"),
    [
        ("?scenario=offline", ["offline"]),
        ("?text=CLOSED+again", ["closed-loop-again"]),
        ("?text=nothing", []),
        ("?machine=nowhere", []),
        ("?verdict=INVALID", []),
        (f"?since={MADE}&until={MADE}&model=digits&scenario=single-stream", ["single-stream"]),
        ("?until=2020-01-01", []),
        ("?sort=throughput&text=loop", ["closed-loop", "closed-loop-again"]),
        ("?sort=throughput&text=loop&turned=1", ["closed-loop-again", "closed-loop"]),
        ("?sort=accuracy&text=s", ["server"]),
        ("?sort=nonsense&page=-3&page=x&inside=1&unknown=1&text=offline", ["offline"]),
    ],
)
def test_the_query_filters_and_sorts_the_list(
    client: TestClient, query: str, runs: list[str]
) -> None:
    assert listed(client, query)[: len(runs) or None] == runs


def test_a_run_without_the_number_comes_last_in_both_directions(client: TestClient) -> None:
    for turned in ("", "&turned=1"):
        assert listed(client, f"?sort=accuracy{turned}")[0] == "server"


def test_a_row_has_a_chip_for_doubts_and_offline_has_no_p99(client: TestClient) -> None:
    rows = html.unescape(page(client, "/?text=offline").partition("<tbody>")[2])
    assert (
        'tabindex="0">2<span class="word"> doubts</span><span class="tip" role="tooltip">' in rows
    )
    for code in ("short-run", "steal"):
        assert f"<b>{code}</b>: {typeset(CODES[code].meaning)}" in rows
    assert '<td data-head="p99" class="number p99">-</td>' in rows
    assert '<td data-head="p99" class="number p99">-</td>' not in page(client, "/?text=closed")


def test_a_row_has_a_chip_for_each_reason(results: Path, client: TestClient) -> None:
    path = results / "server/result.json"
    content = json.loads(path.read_text())
    reason = {"code": "slo-missed", "text": "late"}
    path.write_text(json.dumps({**content, "verdict": "INVALID", "reasons": [reason]}))
    rows = html.unescape(page(client, "/?text=server").partition("<tbody>")[2])
    tip = f'slo-missed<span class="tip" role="tooltip">{CODES["slo-missed"].meaning}</span>'
    assert f'<span class="chip bad" tabindex="0">{tip}' in rows


def test_several_reasons_have_one_chip_so_that_a_run_has_one_line(
    results: Path, client: TestClient
) -> None:
    path = results / "server/result.json"
    content = json.loads(path.read_text())
    reasons = [{"code": code, "text": "late"} for code in ("slo-missed", "batch-failed")]
    path.write_text(json.dumps({**content, "verdict": "INVALID", "reasons": reasons}))
    rows = html.unescape(page(client, "/?text=server").partition("<tbody>")[2])
    assert '<span class="chip bad" tabindex="0">2<span class="word"> reasons</span>' in rows
    assert f"<b>batch-failed</b>: {CODES['batch-failed'].meaning}" in rows


def test_pages_of_the_list_keep_the_filters_and_the_picked_runs(
    results: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.browse.views.PAGE_SIZE", 2)
    first = page(client, "/?backend=ort&run=server")
    assert "5 runs, 1 to 2 shown." in first
    assert '<a rel="next" href="/?backend=ort&amp;page=2&amp;run=server">' in first
    assert "Picked, not on this page" in first
    last = page(client, "/?page=99")
    assert "Page 3 of 3" in last
    assert "5 to 5 shown" in last
    del results


def test_a_study_is_listed_with_its_runs_apart(results: Path, client: TestClient) -> None:
    sweep = results / "night"
    (sweep / "points").mkdir(parents=True)
    (results / "server").rename(sweep / "points/100")
    (sweep / "sweep.json").write_text('{"points": 3}')
    assert "night/points/100" not in listed(client)
    assert "night/points/100" in listed(client, "?inside=1")
    assert '4 runs. The <a href="/studies">studies</a> have 1 more.' in page(client, "/")
    assert "5 runs." in page(client, "/?inside=1")
    assert "1 of 4 runs." in page(client, "/?scenario=offline")
    assert "Part of night" in page(client, "/run/night/points/100")
    (results / "offline/peak.json").write_text("{}")
    assert '<a class="chip" href="/study/offline">peak</a>' in page(client, "/")
    assert "night has an unknown format" in page(client, "/studies")
    text = page(client, "/study/night")
    assert "/run/night/points/100" in text
    assert 'class="pick"' in text
    (sweep / "points/100/result.json").write_text("{")
    assert 'class="pick"' not in page(client, "/study/night")  # no run can be picked
    assert "its page cannot be made" in text
    assert page(client, "/study/single-stream", 404)


def test_a_serving_overhead_folder_is_listed_as_a_study(results: Path, client: TestClient) -> None:
    study = results / "cost"
    study.mkdir()
    told = {"model": "digits", "overhead": None, "withheld": "the answers differ"}
    (study / "overhead.json").write_text(json.dumps(told))
    (results / "server").rename(study / "1-served")
    assert "cost/1-served" not in listed(client)
    assert "serving overhead not measured: the answers differ" in page(client, "/studies")


def test_runs_in_turns_are_a_study_with_their_verdict(client: TestClient, results: Path) -> None:
    """Bug: no list of studies contained the folder of `rerun A B`, although its verdict is what the user asked for."""
    folder = results / "turns"
    for name in ("a-1", "b-1"):
        shutil.copytree(RUNS / "single-stream", folder / name)
    verdicts = ["undecided: B is as fast as A", "better: C is faster"]
    tables = [f"number  A  B\nverdict   {verdict}" for verdict in verdicts]
    keep(folder, ["old", "new", "newest"], tables, verdicts)
    listed = page(client, "/studies")
    assert "old and new and newest" in listed
    assert "undecided: B is as fast as A; better: C is faster" in listed
    study = page(client, "/study/turns")
    assert "verdict   undecided: B is as fast as A" in study
    for verdict in verdicts:
        assert f'<p class="headline">{verdict[:1].upper()}{verdict[1:]}</p>' in study


def test_the_list_of_studies_names_every_verb_that_makes_one(client: TestClient) -> None:
    told = re.sub("<[^>]*>", "", page(client, "/studies"))
    for verb in STUDIES.values():
        assert re.search(rf"\b{verb}\b", told.partition("has no studies")[2]), verb


SET = "models:\n  - model: digits\n    copies: 2\ncapacity: 300kB\n"
MEASURED = (
    ("machine", "--filter memory-copy/4096/ --repeats 3 --database machine.sqlite"),
    *(
        pytest.param(verb, words, marks=pytest.mark.slow)
        for verb, words in (
            ("sweep", "--scenario server --models set.yaml --workers 1 --pairs 2 --duration 1s"),
            ("cold", "digits --trials 2"),
            ("advise", "--model digits --pairs 3"),
            ("bricks", "digits --database bricks.sqlite"),
            ("pitfalls", "--model digits"),
            ("profile", "--model digits --duration 1s"),
        )
    ),
)


@pytest.mark.parametrize(("verb", "words"), MEASURED)
def test_the_output_of_a_verb_is_listed_with_its_table_and_page(
    verb: str, words: str, results: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(results)
    (results / "set.yaml").write_text(SET)
    subprocess.run(
        [sys.executable, "-m", "harness", verb, *words.split(), "--out", "study"],
        check=True,
        capture_output=True,
    )
    ((path, told),) = re.findall(
        r'href="/study/([^"]+)"[^>]*>.*?</th>\n<td(.*?)</td></tr>',
        page(client, "/studies"),
        re.DOTALL,
    )
    assert path == "study"
    assert "has an unknown format" not in told
    shown = page(client, "/study/study")
    assert "cannot be made" not in shown
    assert "<pre class=" not in shown.replace('<pre class="command">', "")
    assert '<td class="number"' in shown
    written = sorted((results / "study").glob("*.html"))
    # The page that the verb writes and the page in `browse` must have the same tables.
    for name in written:
        tables = re.findall("<table.*?</table>", name.read_text())
        assert tables
        assert all(table in shown for table in tables)
    assert ('class="plot"' in shown) == (verb in ("cold", "advise", "pitfalls", "profile"))
    for made in written:
        assert f"/files/study/{made.name}" in shown
        assert client.get(f"/files/study/{made.name}").status_code == 200


def test_a_sweep_is_drawn_in_its_page(results: Path, client: TestClient) -> None:
    """Bug: browse showed a study as printed text, and listed its plots only as a link among the files."""
    times = dict.fromkeys(("p50_ns", "p90_ns", "p99_ns", "mean_ns"), 2e6)
    known = {"share": None, "mean_batch": 1.0, "busy_share": 0.5, "model_per_s": None}
    texts = {"verdict": "VALID", "reasons": (), "doubts": (), "folder": "", "queries": 1, "late": 0}
    rates = ({"rate_per_s": r, "scheduled_per_s": r, "completed_per_s": r} for r in (100.0, 200.0))
    points = [{**rate, **times, **texts, **known} for rate in rates]
    none = {"slo": "p99=<b>", "peak": None, "peak_is_measured": False, "knee": None}
    config = {"config": {"scenario": "server", "backend": "ort"}, "model": "digits"}
    study = results / "curve"
    study.mkdir()
    for slo, plots in (("p99=10ms", 2), ("p99=<b>", 0)):
        content = {**none, **config, "slo": slo, "points": points, "highest_valid": 200.0}
        (study / "sweep.json").write_text(json.dumps(content))
        shown = page(client, "/study/curve")
        assert shown.count('class="plot"') == plots
        assert ("/assets/plotly-" in shown) == bool(plots)
        assert ("its page cannot be made" in shown) == (not plots)
        assert "<b>" not in shown


def test_the_table_of_a_sweep_picks_its_runs_without_a_second_table(
    results: Path, client: TestClient
) -> None:
    """Bug: two tables had the runs of a search, with different numbers, names and words."""
    study = results / "curve"
    (study / "points").mkdir(parents=True)
    shutil.copytree(results / "server", study / "points/100")
    times = dict.fromkeys(("p50_ns", "p90_ns", "p99_ns", "mean_ns"), 2e6)
    known = {"share": None, "mean_batch": 1.0, "busy_share": 0.5, "model_per_s": None}
    texts = {"verdict": "VALID", "reasons": (), "doubts": (), "queries": 1, "late": 0}
    rate = {"rate_per_s": 100.0, "scheduled_per_s": 100.0, "completed_per_s": 100.0}
    one = {**rate, **times, **texts, **known, "folder": "points/100"}
    content = {
        "slo": None,
        "peak": None,
        "peak_is_measured": False,
        "knee": None,
        "points": [one],
        "config": {"scenario": "server", "backend": "ort"},
        "model": "digits",
        "highest_valid": 100.0,
    }
    (study / "sweep.json").write_text(json.dumps(content))
    shown = page(client, "/study/curve")
    assert shown.count('name="run" value="curve/points/100"') == 1
    assert 'id="compare"' in shown
    assert "Its runs" not in shown
    (study / "sweep.json").write_text("{}")
    assert "Its runs" in page(client, "/study/curve")


def test_without_plotly_a_study_keeps_its_tables(
    results: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {
        "model": "digits",
        "level": 0.95,
        "withheld": None,
        "overhead": {"parts": {}, "explained": 1.0, "of_model": 1.0},
        "pairs": [{"in_process_ns": 1e5, "served_ns": 2e5, "overhead_ns": 1e5}],
        "config": {"served": {"backend": "kserve", "url": ["h"]}, "in_process": {"backend": "ort"}},
        "throughput": None,
        "answers": None,
        "described": {},
        "server_times": None,
        "runs": [],
    }
    mean = {"mean_ns": 1e5, "low_ns": None, "high_ns": None}
    content["overhead"] |= {**mean, "in_process": mean, "served": {**mean, "mean_ns": 2e5}}  # type: ignore[operator]
    (results / "cost").mkdir()
    (results / "cost/overhead.json").write_text(json.dumps(content))
    assert page(client, "/study/cost").count('class="plot"') == 2
    monkeypatch.setattr("harness.results.pages.page.find_spec", lambda _: None)
    shown = page(client, "/study/cost")
    assert 'class="plot"' not in shown
    assert "Plots need plotly" in shown
    assert '<td>served</td><td class="number">200\u00a0µs</td>' in shown


def test_the_link_of_a_run_is_its_workload_and_a_chosen_name_follows(
    results: Path, client: TestClient
) -> None:
    """Bug: a single chosen name changed the columns of all rows, and names of runs in studies were cut to their equal
    beginnings.
    """
    started = json.loads((results / "server/result.json").read_text())["started"]
    shown = started[:19].replace("T", " ")

    def cell_of(folder: str) -> str:
        (cell,) = re.findall(
            rf'<a href="/run/{folder}".*?</th>', page(client, "/?inside=on"), re.DOTALL
        )
        return re.sub(r"\s+", " ", re.sub("<.*?>", "", f"<{cell}")).strip()

    assert cell_of("server") == f"digits · server · ort, {shown} server"
    named = "2026-11-28T14-01-57Z-server-ort-digits"
    (results / "server").rename(results / named)
    assert cell_of(named) == f"digits · server · ort, {shown}"
    study = results / "2026-11-28T14-01-57Z-peak-server-ort-digits"
    study.mkdir()
    (study / "peak.json").write_text("{}")
    (results / named).rename(study / "probes-03")
    assert (
        cell_of(f"{study.name}/probes-03")
        == f"digits · server · ort, {shown} probes-03 peak 11-28 14:01"
    )


def test_a_study_that_is_printed_again_keeps_its_place(results: Path, client: TestClient) -> None:
    """Bug: `sweep --from` changed the folder's date, so a study made in the morning moved to the top of the list."""
    for hour in ("15", "14"):  # the test writes the earlier study last, on purpose
        study = results / f"2026-11-28T{hour}-00-00Z-peak-server"
        study.mkdir()
        (study / "peak.json").write_text("{}")
    found = re.findall(r'href="/study/2026-11-28T(\d\d)', page(client, "/studies"))
    assert found == ["15", "14"]


def made_studies(results: Path) -> None:
    """Writes an unfinished peak and a grid of another model."""
    peak = {"scenario": "server", "backend": "ort", "model": "digits", "slo": "p99=10ms"}
    told = {**peak, "peak": None, "finished": True, "unit": "queries/s", "warnings": ()}
    grid = {
        "config": {"scenario": "offline"},
        "axes": {"model": ["resnet"], "batch": [1, 2]},
        "fastest": "73,871 samples/s with batch 2",
    }
    for path, content in (("one.partial/peak.json", told), ("two/grid.json", grid)):
        (results / path).parent.mkdir()
        (results / path).write_text(json.dumps(content))


def test_an_outcome_states_the_bound_of_a_peak_and_the_answer_of_a_grid(
    results: Path, client: TestClient
) -> None:
    """Bug: a peak had no bound, and a grid had the sizes of its axes."""
    made_studies(results)
    text = page(client, "/studies").replace("\u00a0", " ")
    assert " · p99=10ms<" in text
    assert 'class="outcome">no peak</td>' in text
    assert 'class="outcome">73,871 samples/s with batch 2</td>' in text
    assert '<span class="badge unfinished">UNFINISHED</span>' in text
    assert '<span class="badge invalid">INVALID</span> </td>' in text


def test_a_study_that_a_process_still_writes_is_running(results: Path, client: TestClient) -> None:
    """Bug: a running `machine` was "unfinished", and a `tune` that still made bare loops was not listed at all."""
    study = ResultFolder(results / "night")
    now = '<a href="/live/night.partial" title="night">night</a>'
    assert now in page(client, "/")
    assert "RUNNING" in page(client, "/live/night.partial")
    made_studies(results)
    (results / "one.partial/peak.json").rename(study.path / "peak.json")
    running = '<a class="badge running" href="/live/night.partial">RUNNING</a>'
    assert running in page(client, "/studies")
    assert "<h1>Peak · digits · server · ort" in page(client, "/live/night.partial")
    now_s = time.time()
    noted = {"text": "run 3 of 9, about", "begun_s": now_s - 40, "ends_s": now_s + 119.5}
    (study.path / "progress.json").write_text(json.dumps(noted))
    live = page(client, "/live/night.partial").replace("\u00a0", " ")
    assert "</span> run 3 of 9, about 2 min left in all <progress" in live
    assert (
        '<span class="quiet">25 %</span> · <a href="/study/night.partial">results so far</a></p>'
        in live
    )
    assert '<span class="quiet">25 %</span></li>' in page(client, "/").replace("\u00a0", " ")
    # Bug: the address of a study as of a run said "This folder is not a run".
    assert client.get("/run/night.partial").url.path == "/live/night.partial"
    del study  # as at the end of its process
    assert client.get("/run/night.partial").url.path == "/study/night.partial"
    assert now not in page(client, "/")
    assert running not in page(client, "/studies")
    # Bug: the live page of a stopped study had an empty plot and numbers "so far".
    assert client.get("/live/night.partial").url.path == "/study/night.partial"
    told = json.loads((results / "night.partial/peak.json").read_text())
    ended = json.dumps({**told, "ended_early": "batch-failed: <no> memory"})
    (results / "night.partial/peak.json").write_text(ended)
    shown = page(client, "/study/night.partial")
    assert "This study ended early: batch-failed: &lt;no&gt; memory" in shown


def test_the_page_of_a_run_in_progress_leads_to_its_live_page(
    results: Path, client: TestClient
) -> None:
    """Bug: it said that the run had ended before its first query, and was gone after the end."""
    run = ResultFolder(results / "noon")
    (run.path / "config.yaml").write_text("scenario: server\n")
    assert client.get("/run/noon.partial").url.path == "/live/noon.partial"
    (results / "noon.partial").rename(results / "server-moved")
    for view in ("run", "live", "events"):  # bug: an internal error
        assert client.get(f"/{view}/a%00.partial").status_code == 404
    assert client.get("/run/server.partial").url.path == "/run/server"


def test_a_study_with_its_final_name_is_running_until_its_process_ends(
    results: Path, client: TestClient
) -> None:
    """Bug: a sweep, a grid, `overhead` and a comparison of backends had no live page, and their pages looked complete."""
    made_studies(results)
    study = results / "night"
    (results / "one.partial").rename(study)
    (study / "progress.json").write_text(
        json.dumps({"text": "starting", "begun_s": None, "ends_s": None})
    )
    unlock = locked(client, study)
    assert 'href="/live/night"' in page(client, "/")
    assert '<a class="badge running" href="/live/night">RUNNING</a>' in page(client, "/studies")
    assert "RUNNING</span> This is the state so far" in page(client, "/study/night")
    assert "RUNNING</span> starting" in page(client, "/live/night")
    unlock()  # as if its process had been killed
    assert client.get("/live/night").url.path == "/study/night"
    assert "UNFINISHED</span> This study was stopped" in page(client, "/study/night")
    (study / "progress.json").unlink()  # as at the end of the study
    assert "UNFINISHED" not in page(client, "/study/night")
    assert 'href="/live/night"' not in page(client, "/")


@pytest.mark.parametrize(
    ("query", "paths"),
    [
        ("", ["one.partial", "two"]),
        ("?kind=peak", ["one.partial"]),
        ("?model=resnet", ["two"]),
        ("?text=73,871+GRID", ["two"]),
        ("?kind=peak&model=resnet", []),
        ("?kind=%3Cb%3E", []),
    ],
)
def test_the_query_filters_the_list_of_studies(
    results: Path, client: TestClient, query: str, paths: list[str]
) -> None:
    made_studies(results)
    text = page(client, f"/studies{query}")
    found = re.findall(r'class="name"><a href="/study/([^"]+)"', text)
    assert sorted(found) == paths
    assert ("No study matches" in text) is (not paths)
    assert ('<a href="/studies">Clear</a>' in text) is bool(query)


def test_studies_are_counted_in_the_singular_and_plural(results: Path, client: TestClient) -> None:
    made_studies(results)
    assert ">2 studies." in page(client, "/studies")
    shutil.rmtree(results / "two")
    assert ">1 study." in page(client, "/studies")


def test_repeated_runs_are_compared_as_one_side(results: Path, client: TestClient) -> None:
    side = results / "again"
    side.mkdir()
    number = {"unit": "ns", "values": [2e6, 3e6], "mean": 2.5e6, "interval": [2.4e6, 2.6e6]}
    content = {
        "scenario": "server",
        "backend": "null",
        "model": "digits",
        "level": 0.95,
        "verdicts": ["VALID", "VALID"],
        "doubts": [["drift"], []],
        "left_out": [None, None],
        "deciding": "p99",
        "numbers": {"mean": number, "p99": number},
    }
    (side / "repeats.json").write_text(json.dumps(content))
    for place, name in enumerate(("closed-loop", "closed-loop-again"), 1):
        shutil.copytree(RUNS / name, side / f"run-{place}")
    (side / "latest").symlink_to("run-2")  # a run with --repeats leaves this link
    text = page(client, "/compare?run=again&run=closed-loop")
    # Bug: the side was one line for each run, and the plots showed its first run without saying so.
    one_line = '<b>A</b> <a href="/study/again">again</a> <span class="quiet">2 runs, 2 VALID; the plots show run-1</span>'
    assert one_line in text
    assert text.count('<li class="inside"><a href="/run/again/run-') == 2
    told = "p99 2.50 ms (2.40 ms to 2.60 ms) over 2 runs, 2 VALID"
    assert typeset(told) in page(client, "/studies")
    study = page(client, "/study/again")
    # Bug: the page offered to compare its runs with each other, which is refused.
    assert "checkbox" not in study
    assert "Compare with" not in study
    shutil.copytree(side, results / "later", symlinks=True)
    assert "/compare?run=later&amp;run=again" in page(client, "/study/again")
    assert f'<p class="headline">{typeset(told)}</p>' in study
    assert "The line through the mean is its 95\u00a0% interval." in study
    where = '<dt>Machine</dt><dd class="doubts">not at rest in 1 of 2 runs '
    assert f'{where}(<span class="chip uncertain" tabindex="0">drift<' in study
    assert "</span>): stop other programs and repeat</dd>" in study
    assert (
        '<td data-head="number">p99</td><td class="number" data-head="geometric mean">2.50\u00a0ms</td>'
        in study
    )


def test_a_run_without_an_answer_is_listed(results: Path, client: TestClient) -> None:
    """Bug: one result whose answer cannot be made, as of an old version, broke the list of all runs."""
    edit(results / "server", slo="p99=zz")
    assert "/run/server" in page(client, "/")
    assert page(client, "/?inside=1")


def test_a_run_is_compared_with_the_previous_run_at_the_same_load(
    results: Path, client: TestClient
) -> None:
    """Bug: the link led to a run at a different rate, so the comparison ranked nothing."""
    shutil.copytree(results / "server", results / "early")
    edit(results / "early", started="2020-01-01T00:00:00.000Z")
    link = "/compare?run=early&amp;run=server"
    assert link in page(client, "/run/server")
    rates = json.loads((RUNS / "server/result.json").read_text())["throughput_per_s"]
    edit(results / "early", throughput_per_s={**rates, "asked": 2 * rates["asked"]})
    assert link not in page(client, "/run/server")


def test_plots_show_the_run_with_the_median_of_at_least_three() -> None:
    side: Any = [
        SimpleNamespace(folder=Path(f"run-{value}"), numbers={"p99": SimpleNamespace(value=value)})
        for value in (3, 1, 2)
    ]
    assert comparisons._middle(side, "p99") == (side[2], "run-2, with the median p99")
    assert comparisons._middle(side[:2], "p99") == (side[0], "run-3")
    assert comparisons._middle(side, "p90") == (side[0], "run-3")


def test_compare_judges_as_the_verb_does(
    results: Path, client: TestClient, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["compare", str(results / "closed-loop"), str(results / "closed-loop-again")])
    *_, printed = capsys.readouterr().out.splitlines()
    text = html.unescape(page(client, PAIR))
    first, *others = printed.removeprefix("verdict").strip().split("; ")
    told = [first[:1].upper() + first[1:], "; ".join(others)[1:]]
    assert all(clause in text.replace("\xa0", " ") for clause in told)
    # The page links to the comparison in the reverse order.
    assert "/compare?run=closed-loop-again&run=closed-loop" in text


def test_compare_picked_takes_the_oldest_run_as_a(results: Path, client: TestClient) -> None:
    """The list shows the newest run first, but a reader asks whether the newer run is better."""
    edit(results / "closed-loop-again", started="2026-07-01T00:00:00.000+00:00")
    edit(results / "closed-loop", started="2026-07-02T00:00:00.000+00:00")
    text = page(client, f"{PAIR}&oldest=first")
    assert text.index("<b>A</b>") < text.index("closed-loop-again") < text.index("<b>B</b>")
    # The link that swaps the runs must not sort them by age again.
    assert '/compare?run=closed-loop&run=closed-loop-again"' in html.unescape(text)
    assert "oldest=" not in text
    missing = page(client, "/compare?run=nowhere&run=closed-loop&oldest=first")
    assert "nowhere: this run does not exist" in missing


def test_a_comparison_begins_with_the_numbers_that_a_reader_looks_for(client: TestClient) -> None:
    """Bug: the four rows that most readers need were hidden among 23 rows of equal rank."""
    text = html.unescape(page(client, PAIR))
    first, _, folded = text.partition("<details>")
    names = re.compile(r'<tr><th scope="row"><span>(.+?)(?: <span.*)?</span></th>')
    assert names.findall(first) == ["p90", "p99", "p50", "throughput"]
    assert (
        first.count("lower is better") == 3
    )  # bug: a higher rate and a higher latency looked alike
    summary, _, others = folded.partition("</summary>")
    assert f"{len(names.findall(others))} other numbers" in summary
    assert {"p95", "infer p50"} <= {*names.findall(others)}
    # The verdict names the sides by letter, so the sides come first.
    assert first.index("VALID") < first.index('class="headline') < first.index('class="changes"')
    # On a narrow screen, the row becomes a card with `data-head` as a label.
    assert '<td data-head="change" class="number">' in first


def test_a_comparison_draws_all_sides_in_each_plot(client: TestClient) -> None:
    """Bug: three runs had the plots of two pairs, one pair after the other."""
    pytest.importorskip("plotly")
    text = page(client, f"{PAIR}&run=server")
    drawn = json.loads(text.partition('id="figures">')[2].partition("</script>")[0])
    names = [list(dict.fromkeys(trace["name"] for trace in plot["data"])) for plot in drawn]
    assert names == [["A", "B", "C"]] * 4
    places = re.findall(r'id="plot-(\d+)" role="img" aria-label="([^:]+):', text)
    titles = ["Latency distribution", "Tail", "Over time", "Where the time goes"]
    assert places == [(str(i), title) for i, title in enumerate(titles)]
    assert text.index(f'src="/assets/{plotly_script()[1]}"') < text.index("/assets/page.js")


def test_names_in_legends_are_escaped(client: TestClient, results: Path) -> None:
    """Bug: plotly read the model's name from a result as HTML, and drew a link to another host."""
    pytest.importorskip("plotly")
    changed = json.loads((results / "closed-loop-again/result.json").read_text())
    changed["model"] = 'm<a href="https://evil.example">x</a>'
    (results / "closed-loop-again/result.json").write_text(json.dumps(changed))
    text = page(client, PAIR)
    drawn = json.loads(text.partition('id="figures">')[2].partition("</script>")[0])
    names = {trace["name"] for plot in drawn for trace in plot["data"]}
    assert "A digits" in names
    assert "B m&lt;a href=&quot;https://evil.example&quot;&gt;x&lt;/a&gt;" in names


def test_a_run_with_an_unusable_slo_leaves_history_to_the_others(
    client: TestClient, results: Path
) -> None:
    """Bug: the whole page was an error that did not name the run."""
    odd = json.loads((results / "closed-loop/result.json").read_text())
    shutil.copytree(results / "closed-loop", results / "odd")
    for slo in ("p99=abc", 5):
        (results / "odd/result.json").write_text(json.dumps({**odd, "slo": slo}))
        assert "closed-loop-again" in page(client, "/history")
        assert "odd/result.json" in page(client, "/")
        assert "AttributeError" not in page(client, "/")


def test_a_result_that_was_changed_after_the_run_is_not_shown_as_valid(
    client: TestClient, results: Path
) -> None:
    """Bug: the list and the page showed the changed number as VALID, although `check` refused the folder."""
    assert 'href="/run/server"' in page(client, "/")
    digests.write(results / "server")
    assert 'href="/run/server"' in page(client, "/")
    edit(results / "server", doubts=[])
    told = "server/result.json was changed after the run: its SHA-256 differs from SHA256SUMS"
    assert told in page(client, "/")
    assert told in page(client, "/run/server")
    assert "VALID" not in page(client, "/run/server")


def test_three_runs_share_one_table_with_a_row_per_side(client: TestClient) -> None:
    """Bug: three runs had a table for each pair, so that B could not be compared with C."""
    main_table, folded = re.findall(
        '<table class="changes">.*?</table>', page(client, f"{PAIR}&run=server"), re.DOTALL
    )
    rows = re.findall(
        r'<tr( class="again"|)><th scope="row"><span>(.*?) .*?data-head="side"><span>(.)</span></td>',
        main_table,
        re.DOTALL,
    )
    again = ' class="again"'
    assert rows[:4] == [
        ("", "p90", "B"),
        (again, "p90", "C"),
        ("", "p99", "B"),
        (again, "p99", "C"),
    ]
    assert '<td data-head="side"><span>C</span></td>' in folded
    text = page(client, f"{PAIR}&run=server")
    assert text.count("<b>A</b>") == 1
    assert [f"{letter} against A</h2>" in text for letter in "BC"] == [True, True]
    assert 'data-head="side"' not in page(client, PAIR)


def test_the_reasons_against_several_rankings_are_one_table(client: TestClient) -> None:
    """Bug: four comparisons that are refused were four headings with nearly equal tables."""
    text = page(client, "/compare?run=server&run=closed-loop&run=closed-loop-again")
    assert text.count("nothing is ranked") == 1
    section = text.partition('aria-labelledby="refused"')[2].partition("</section>")[0]
    assert ">B and C against A</h2>" in section
    heads = re.findall('<th scope="col">(.*?)</th>', section)
    assert heads == ["not comparable", "A", "B", "C", "remedy"]
    for row in re.findall('<th scope="row">.*?</tr>', section):
        ours, theirs, again, _ = re.findall("<td.*?>(.*?)</td>", row)
        assert (theirs, again) != (ours, ours)


def test_a_comparison_reads_the_samples_for_few_plots_and_once(
    client: TestClient, results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: each additional run made the page slower, and the number of runs had no limit."""
    reads: list[list[str]] = []

    def draw(folders: dict[str, Path]) -> list[Figure]:
        reads.append(list(folders))
        return [Figure(" and ".join(folders), "", [], {})]

    monkeypatch.setattr(comparisons, "figures", draw)
    for number in range(6):
        shutil.copytree(results / "closed-loop", results / f"copy-{number}")
    address = "/compare?run=closed-loop" + "".join(f"&run=copy-{number}" for number in range(6))
    for _ in range(2):
        text = page(client, address)
        assert "The plots show the first 6 sides only." in text
    assert [len(sides) for sides in reads] == [comparisons.MOST_DRAWN]


def test_a_comparison_without_samples_keeps_its_table(results: Path, client: TestClient) -> None:
    shutil.rmtree(results / "closed-loop-again/performance")
    text = page(client, PAIR)
    assert "No plots: the samples of a run are missing." in text
    assert 'class="changes"' in text
    assert 'id="figures"' not in text


def test_settings_that_differ_stand_in_one_table(results: Path, client: TestClient) -> None:
    """Bug: the word `differs` was repeated for each setting."""
    environment = results / "closed-loop/environment.json"
    content = json.loads(environment.read_text())
    content["machine"] |= {"cpu": "another", "memory_bytes": 1}
    environment.write_text(json.dumps(content))
    text = page(client, PAIR)
    (count,) = re.findall(r"<summary>(\d+) differences? in settings</summary>", text)
    assert count == "2"


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ("", "Pick two or more runs"),
        ("?run=server", "Pick two or more runs"),
        ("?run=server&run=gone", "gone: this run does not exist"),
        ("?run=server&run=../../etc", "../../etc: this run does not exist"),
    ],
)
def test_incomparable_sides_show_a_message(client: TestClient, query: str, message: str) -> None:
    assert message in page(client, f"/compare{query}")


def test_a_broken_side_is_reported_in_one_line(results: Path, client: TestClient) -> None:
    (results / "closed-loop/performance/run_1/run.json").write_text("[")
    text = page(client, PAIR)
    assert "is not a file of a run" in text


def test_the_page_of_a_run_has_its_report_and_its_neighbours(
    results: Path, client: TestClient
) -> None:
    shutil.copytree(results / "server", results / "server-2")
    edit(results / "server-2", started="2030-01-01T00:00:00.000+00:00")
    (results / "server-2/report.html").write_text("<!doctype html><p>report</p>")
    text = html.unescape(page(client, "/run/server-2"))
    assert "/files/server-2/report.html" in text
    assert "/compare?run=server&run=server-2" in text
    # Bug: an INVALID run was the baseline.
    edit(results / "server", verdict="INVALID")
    assert "Compare with the previous" not in page(client, "/run/server-2")
    assert "/history?scenario=server&backend=ort&model=digits&machine=machine" in text
    report = client.get("/files/server-2/report.html")
    assert "sandbox allow-scripts" in report.headers["content-security-policy"]
    # `default-src 'none'` also applies to connections.
    assert "connect-src" not in report.headers["content-security-policy"]


def test_the_plots_of_a_run_are_in_its_page(results: Path, client: TestClient) -> None:
    """Bug: the page of a run had no plots, and its button opened a page that could be older than the run's files."""
    text = page(client, "/run/server")
    assert text.count('class="plot"') >= 4
    assert plotly_script()[1] in text
    assert "Latency distribution" in text
    (results / "server/performance/run_1/run.json").write_text("[")
    (results / "server/changed").touch()
    text = page(client, "/run/server")
    assert re.search(r"No plots: .*run.json is not a file of a run", text)
    assert 'class="headline"' in text
    assert 'class="plot"' not in text


def test_the_rows_of_a_run_are_read_once(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    page(client, "/run/server")
    monkeypatch.setattr("harness.browse.views.records.read_samples", None)
    assert 'class="plot"' in page(client, "/run/server")


@pytest.mark.parametrize("name", ["server", "offline", "single-stream", "closed-loop"])
def test_the_answer_of_a_run_is_the_same_on_every_page(
    results: Path, client: TestClient, name: str
) -> None:
    """Bug: for Server, the list showed LoadGen's number, which is only the requested rate."""
    result = json.loads((results / name / "result.json").read_text())
    answer = answer_of(result)
    head = list(pages.answer(answer.headline))
    shown = article(read_files(results / name, with_evidence=False), []).head
    assert [line for line in shown if line in head] == head
    assert typeset("\n".join(head)) in page(client, f"/run/{name}")
    short = headline_in_short(result)
    assert f'title="{typeset(html.escape(short))}">' in page(client, "/")
    assert short == re.sub(r" \(no 95 % interval: .*?\)", "", answer.headline)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("p99 30.1 ms of 50 ms allowed at 7,773 queries/s", "p99 30.1 ms ≤\u00a050 ms at 7,773/s"),
        ("p99 88.8 ms, above the 1.5 s allowed", "p99 88.8 ms >\u00a01.5 s"),
        ("p90 9 ms, not proven to be within 50 ms", "p90 9 ms, not proven ≤\u00a050 ms"),
        ("37,493 samples/s", "37,493 samples/s"),
    ],
)
def test_the_list_shortens_an_answer_to_one_line(answer: str, expected: str) -> None:
    """Bug: the column was cut before the bound and the rate."""
    assert brief(answer) == expected


def test_pareto_includes_the_runs_of_studies_if_nothing_else_compares(
    results: Path, client: TestClient
) -> None:
    """Bug: with all comparable runs in studies, the page was a list of tasks without a comparison."""
    note = "Runs of studies are included, because without them no task has two configurations."
    assert note not in page(client, "/pareto")
    for name, batch in (("grid/1", 1), ("grid/2", 2)):
        shutil.copytree(results / "closed-loop", results / name)
        result = json.loads((results / name / "result.json").read_text())
        result["plan"]["max_batch"] = batch
        (results / name / "result.json").write_text(json.dumps(result))
    (results / "grid/grid.json").write_text("{}")
    shown = page(client, "/pareto?text=grid")
    assert note in shown
    assert "on the front" in shown
    assert re.search('name="inside" value="1" checked', shown)
    asked = page(client, "/pareto?text=grid&inside=1")
    assert "on the front" in asked
    assert note not in asked


@pytest.mark.parametrize("view", ["history", "pareto"])
def test_every_run_in_a_table_leads_to_its_page(
    results: Path, client: TestClient, view: str
) -> None:
    """Bug: only runs with a report.html were linked."""
    shutil.copytree(results / "server", results / "a b%&")
    (results / "server/report.html").unlink(missing_ok=True)
    text = page(client, f"/{view}")
    linked = {
        html.unescape(name): address
        for address, name in re.findall(r'<a href="(/run/[^"]+)">([^<]+)</a>', text)
    }
    assert {"server", "a b%&"} <= linked.keys()
    for name, address in linked.items():
        shown = page(client, address)
        assert f"{html.escape(name)}, started" in shown
        # Bug: the titles of all tabs began with the same date.
        assert re.search(r"<title>(VALID|INVALID) · ", shown)


@pytest.mark.parametrize("view", ["history", "pareto"])
@pytest.mark.parametrize("text", ["", "nothing"])
def test_the_heading_comes_before_the_filters(client: TestClient, view: str, text: str) -> None:
    shown = page(client, f"/{view}?text={text}")
    assert shown.index("<h1>") < shown.index("<form")


def test_page_that_lacks_workloads_refers_to_its_filters(results: Path, client: TestClient) -> None:
    for number in range(13):
        for day in (1, 2):
            run = results / f"more-{number}-{day}"
            shutil.copytree(results / "offline", run)
            edit(run, model=f"model-{number}", started=f"2026-01-0{day}T00:00:00.000+00:00")
    text = page(client, "/history?scenario=offline")
    assert "1 more workload is not shown: use the filters above." in text


def test_differences_between_machines_are_shown_first(results: Path, client: TestClient) -> None:
    file = results / "offline/environment.json"
    content = json.loads(file.read_text())
    content["machine"]["cpu"] = "another one"
    file.write_text(json.dumps(content))
    picked = "/machines?run=offline&run=server"
    only = page(client, picked)
    assert "another one" in only
    assert '<th scope="row">CPU</th>' in only
    assert "architecture</th>" not in only
    every = page(client, f"{picked}&all=1")
    assert "architecture</th>" in every
    assert every.count(">Machine</th>") == 1  # `Machine` is the heading of a group of rows
    assert html.escape(f"{picked}&all=1") in only


def test_a_file_that_becomes_readable_joins_its_machine(results: Path) -> None:
    """Bug: a run whose file could not be read once was a separate machine until `browse` ended."""
    file, away = (results / "server" / name for name in ("environment.json", "away.json"))
    file.rename(away)
    machines = Machines(Index(results))
    assert len(machines._newest()) == 2
    away.rename(file)
    assert len(machines._newest()) == 1


def test_a_machine_is_one_column_with_its_runs_counted(results: Path, client: TestClient) -> None:
    for run in ("offline", "server"):
        file = results / run / "environment.json"
        content = json.loads(file.read_text())
        content["machine"] |= {"fingerprint": "f00", "memory_bytes": 25276514304}
        file.write_text(json.dumps(content))
    shown = page(client, "/machines?all=1")
    # The column's head contains the name of the host.
    assert shown.count('<th scope="col">machine</th>') == 2
    assert "newest of 2 runs" in shown
    assert "newest of 3 runs" in shown
    assert "<td>25.3\u00a0GB</td>" in shown  # Bug: 25276514304
    # The page shows no seeds, because seeds belong to a run and not to the machine.
    assert "seeds" not in shown


def test_the_page_of_machines_begins_with_what_each_machine_can_do(
    results: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the page was a list of settings, without the measured peaks."""
    for file in results.glob("*/environment.json"):
        content = json.loads(file.read_text())
        content["machine"] |= {"fingerprint": "f00", "memory_bytes": 25276514304}
        file.write_text(json.dumps(content))
    assert '<p class="headline">Peaks not measured</p>' in page(client, "/machines")
    study = results / "peaks"
    study.mkdir()
    (study / "machine.json").write_text('{"fingerprint": "f00", "machine": {"cpu": "processor"}}')
    fp32 = QuotedPeak("fp32", "208 GFLOP/s", 2, None)
    monkeypatch.setattr(machine_page, "quoted_peaks", lambda _: [fp32])
    monkeypatch.setattr(studies, "peaks_line", lambda _: "fp32 208 GFLOP/s on 2 threads")
    shown = page(client, "/machines")
    assert "<h1>Machine · machine</h1>" in shown
    assert '<dt>fp32</dt><dd>208 <span class="unit">GFLOP/s</span>' in shown
    assert "processor, 2 usable cores, 25.3\u00a0GB memory" in shown
    assert '<a href="/study/peaks">' in shown
    both = page(client, "/machines?run=offline&run=server")  # Bug: the peaks stood there twice
    assert both.count("<dt>fp32</dt>") == 1
    listed = page(client, "/studies")
    assert 'class="outcome">fp32 208 GFLOP/s on 2 threads</td>' in listed


def test_a_single_machine_has_its_groups_side_by_side(results: Path, client: TestClient) -> None:
    """Bug: one column of values left two thirds of the page empty, and digests filled several lines."""
    digest = "0123456789abcdef" * 4
    for file in results.glob("*/environment.json"):
        content = json.loads(file.read_text())
        content["machine"] = {"fingerprint": "f00", "host": "alone"}
        content["harness"] = {"commit": digest}
        file.write_text(json.dumps(content))
    shown = page(client, "/machines")
    assert shown.count("<caption>Machine</caption>") == 1
    assert f'<td><span title="{digest}">0123456789ab…</span></td>' in shown
    assert "Machines side by side" not in shown


def test_foreign_texts_are_escaped_on_every_page(results: Path, client: TestClient) -> None:
    run = results / "server"
    for name in ("model", "backend", "dataset"):
        edit(run, **{name: EVIL})
    edit(run, reasons=[{"code": EVIL, "text": EVIL}], verdict=EVIL)
    edit(run, environment={"machine": {"host": EVIL}})
    (run / "environment.json").write_text(json.dumps({EVIL: EVIL}))
    odd = results / f"{EVIL.replace('/', '')} #?"
    shutil.copytree(run, odd)
    broken = results / "<script>alert(2)\n\udc80"
    broken.mkdir()
    (broken / "result.json").write_text("<script>")
    picked = "&".join(f"run={quote(name)}" for name in (odd.name, "server"))
    paths = (*PAGES, f"/run/{quote(odd.name)}", f"/compare?{picked}", f"/machines?{picked}")
    for path in (*paths, f"/?text={quote(EVIL)}", f"/?machine={quote(EVIL)}"):
        text = page(client, path)
        assert "<script>" not in text, path
        assert 'alert(1)</script>&"' not in text, path
    assert odd.name in listed_names(page(client, "/"))


def listed_names(text: str) -> list[str]:
    return [html.unescape(v) for v in re.findall(r'name="run" value="([^"]*)"', text)]


def test_private_names_are_hidden(
    results: Path, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/ann-of-the-test")
    edit(results / "server", model="/home/ann-of-the-test/model.onnx")
    for path in ("/", "/run/server", "/history"):
        text = page(client, path)
        assert "/home/ann-of-the-test/model.onnx" not in text.replace('value="/home', "")
        assert "~/model.onnx" in text


@pytest.mark.parametrize(
    "path",
    [
        "/files/server/config.yaml",  # config.yaml contains private names
        "/files/server/findings.json",
        "/files/../../etc/passwd",
        "/files/%2e%2e/%2e%2e/etc/passwd",
        "/files/server/performance/run_1/run.json",
        "/files/report.html",
        "/run/nothing",
        "/run/%2e%2e",
        "/live/nothing",
        "/events/nothing",
        "/study/server",
        "/assets/../app.py",
        "/assets/app.py",
        "/nothing",
        "/nothing/report.html",
    ],
)
def test_private_and_unknown_paths_return_404(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 404


def test_a_report_that_is_a_link_is_not_served(results: Path, client: TestClient) -> None:
    (results / "server/report.html").symlink_to("/etc/passwd")
    assert client.get("/files/server/report.html").status_code == 404
    assert "is not read: it is a link" in page(client, "/run/server")


def test_the_plotting_script_is_the_installed_one(results: Path, client: TestClient) -> None:
    script, name = plotly_script()
    (results / name).write_text("alert(1)")
    answer = client.get(f"/files/{name}")
    assert answer.content == script.read_bytes()
    assert "immutable" in answer.headers["cache-control"]


def test_history_has_tables_without_the_plotting_script(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    from harness.errors import PluginUnavailable

    def missing() -> None:
        raise PluginUnavailable("no plotly")

    monkeypatch.setattr("harness.results.pages.page.plotly_script", missing)
    text = page(client, "/history")
    assert "Plots need plotly" in text
    assert 'class="plot"' not in text
    assert "<table" in text


@pytest.mark.parametrize(
    ("method", "host", "status"),
    [
        ("GET", "127.0.0.1:9470", 200),
        ("HEAD", "localhost", 200),
        ("GET", "LOCALHOST:1", 200),
        ("GET", "[::1]:9470", 200),
        ("GET", "attacker.example", 421),
        ("GET", "127.0.0.1.attacker.example:9470", 421),
        ("GET", "", 421),
        ("POST", "127.0.0.1", 405),
        ("DELETE", "127.0.0.1", 405),
        ("OPTIONS", "127.0.0.1", 405),
    ],
)
def test_only_reads_with_a_loopback_host_name_are_allowed(
    client: TestClient, method: str, host: str, status: int
) -> None:
    """Because an attacker's DNS can resolve any name to 127.0.0.1, the server refuses names that are not loopback
    names.
    """
    assert client.request(method, "/", headers={"Host": host}).status_code == status


def test_another_host_needs_the_token_which_becomes_a_cookie(results: Path) -> None:
    app = make_app(results, token="secret", cookie="browse-1")
    client = TestClient(app, base_url="http://machine.example:1")
    for path in ("/", "/run/server", "/files/server/result.json", "/?token=Secret", "/?token=%ff"):
        answer = client.get(path)
        assert answer.status_code == 401, path
        assert "set-cookie" not in answer.headers
    assert client.get("/assets/page.css").status_code == 200
    welcome = client.get("/?text=%3Cb%3E&token=secret")
    assert 'content="0; url=/?text=%3Cb%3E"' in welcome.text
    cookie = welcome.headers["set-cookie"]
    assert cookie == "browse-1=secret; HttpOnly; Path=/; SameSite=strict"
    assert client.get("/run/server").status_code == 200
    client.cookies.set("browse-1", "other")
    bare = TestClient(app, base_url="http://machine.example:1", cookies={"browse-1": "other"})
    assert bare.get("/").status_code == 401


def test_a_path_cannot_redirect_the_welcome_page_elsewhere(results: Path) -> None:
    client = TestClient(make_app(results, token="secret"), base_url="http://m")
    text = client.get("http://m//evil.example/?token=secret").text
    assert "url=/evil.example/" in text
    text = client.get('/x"><script>?token=secret').text
    assert "<script>" not in text


def test_no_view_of_a_broken_run_is_a_server_error(results: Path, client: TestClient) -> None:
    """Each run is broken in a different way."""
    (results / "offline/config.yaml").write_text("- 1")
    (results / "server/environment.json").write_text("[]")
    (results / "closed-loop/result.json").write_text("7")
    edit(results / "single-stream", latency_ns={}, throughput_per_s={"completed": "x"})
    edit(results / "closed-loop-again", power={"readings": [{"provenance": 7}]}, host=3)
    runs = [run.name for run in results.iterdir()]
    picked = "&".join(f"run={name}" for name in runs)
    paths = [f"/run/{name}" for name in runs]
    for path in (*paths, f"/compare?{picked}", "/", "/history", "/pareto", "/machines"):
        assert client.get(path).status_code in (200, 422), path


def test_a_deleted_folder_is_reported_in_one_line(results: Path, client: TestClient) -> None:
    shutil.rmtree(results)
    assert "No such file or directory" in page(client, "/", 422)


def test_a_folder_may_be_missing_only_until_it_was_seen(results: Path) -> None:
    awaited = Index(results, is_awaited=True)
    elsewhere = results.with_name("elsewhere")
    results.rename(elsewhere)
    assert awaited.entries() == {}
    elsewhere.rename(results)
    assert awaited.entries()
    shutil.rmtree(results)
    with pytest.raises(FileNotFoundError):
        awaited.entries()


def test_the_verb_refuses_what_it_cannot_serve(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["browse", str(tmp_path / "nothing")]) == 2
    assert main(["browse", "--port", "70000"]) == 2
    assert main(["browse", str(tmp_path), "--host", "203.0.113.7"]) == 2
    err = capsys.readouterr().err
    assert "does not exist: pass a folder of results" in err
    assert "--port 70000: it must be between 0 and 65,535" in err
    assert "203.0.113.7:9470 cannot be used" in err


def test_the_verb_waits_for_the_first_run_only_in_its_usual_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: before the first run, `browse` refused to start, although the run is then watched from its first second."""
    monkeypatch.chdir(tmp_path)
    assert main(["browse", "reslts"]) == 2
    # A process of its own, because uvicorn replaces the log handlers.
    words = [sys.executable, "-m", "harness", "browse", str(tmp_path / "results"), "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdout=pipe, stderr=pipe, text=True) as server:
        assert server.stdout is not None
        assert server.stderr is not None
        first, address = server.stderr.readline(), server.stdout.readline().strip()
        for path in ("", "history", "pareto", "studies", "machines"):
            shown = urlopen(address + path, timeout=30).read().decode()
            assert ("This folder has no run yet" in shown) == (path == "")
        server.terminate()
    assert first == f"harness: browse reads {tmp_path}/results, which the first run creates\n"


@pytest.mark.parametrize(
    ("path", "current"),
    [
        ("/", ("/", "page")),
        ("/history", ("/history", "page")),
        ("/studies", ("/studies", "page")),
        ("/run/server", ("/", "true")),
        ("/run/broken", ("/", "true")),
        ("/study/again", ("/studies", "true")),
        (PAIR, ("/", "true")),
    ],
)
def test_every_page_marks_its_entry_in_the_navigation(
    results: Path, client: TestClient, path: str, current: tuple[str, str]
) -> None:
    """Bug: the pages of runs, studies and comparisons marked no entry."""
    for name, file in (("broken", "result.json"), ("again", "repeats.json")):
        (results / name).mkdir()
        (results / name / file).write_text("{}")
    assert re.findall(r'<a href="([^"]+)" aria-current="(\w+)">', page(client, path)) == [current]


def test_a_peak_that_no_run_confirmed_breaks_only_its_own_line(
    results: Path, client: TestClient
) -> None:
    """Bug: one such file answered the list of all studies with 500."""
    study = results / "odd"
    study.mkdir()
    content = {"scenario": "server", "backend": "ort", "model": "m", "slo": "p99=1ms", "probes": []}
    more = {
        "unit": "queries/s",
        "finished": True,
        "peak": 7.0,
        "warnings": [],
        "failed_above": None,
    }
    (study / "peak.json").write_text(json.dumps(content | more))
    assert "no full run passed at its peak" in page(client, "/studies")
    assert "This page cannot be made" in page(client, "/study/odd")
