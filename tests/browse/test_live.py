"""The state of a live run as read from a real metrics endpoint, and endpoints that only pretend to be a run."""

import asyncio
import json
import re
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from harness.browse import index, snapshots
from harness.browse.app import make_app
from harness.browse.index import Entry, Index
from harness.browse.live import watching
from harness.browse.live.heading import Step, heading, step
from harness.browse.live.past import BETWEEN_RUNS_S, Past
from harness.browse.live.points import point_of_ended
from harness.browse.live.watching import BETWEEN_RUNS, Watching
from harness.browse.snapshots import newest
from harness.core.config.parse import Endpoint, Slo
from harness.core.config.run_config import RunConfig
from harness.results.run_folder import ENDPOINT, ResultFolder
from harness.run.supervisor.completions import NewRows
from harness.run.supervisor.metrics import course
from harness.run.supervisor.metrics.endpoint import MetricsEndpoint
from harness.run.supervisor.metrics.live_counts import LiveCounts
from tests.browse.folders import EVIL, golden_results
from tests.browse.looks import look
from tests.builders.support import golden_journal, plan, present

RUN = "night.partial"
LABELS = {"run": "night", "scenario": "server", "backend": "ort", "model": EVIL}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the golden runs and one live run."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(index, "LASTS_S", -1.0)
    monkeypatch.setattr(course, "LEAST_S", 0.0)
    made = golden_results(tmp_path / "results")
    (made / RUN / "performance").mkdir(parents=True)
    return made


@pytest.fixture
def endpoint(results: Path) -> Iterator[MetricsEndpoint]:
    config = RunConfig(scenario="server", metrics=Endpoint("127.0.0.1", 0))
    with MetricsEndpoint(config, quiet=True) as made:
        made.note_in(results / RUN)
        made.exporter.describe_run(LABELS, {"version": "1", "dataset": "digits", "mode": "both"})
        yield made


def begin(endpoint: MetricsEndpoint, **changed: Any) -> LiveCounts:
    """Starts a phase with 700 answers. changed: fields of its plan."""
    counts = LiveCounts(NewRows(golden_journal("server"), plan("server", **changed)))
    endpoint.exporter.begin(counts, [Slo(0.99, 50_000_000)])
    return counts


def test_the_state_matches_the_live_counts(results: Path, endpoint: MetricsEndpoint) -> None:
    before = newest(results, RUN)
    assert not isinstance(before, str)
    assert (before.phase, before.stages, before.rate, before.left_s) == ("", [], None, None)
    counts = begin(endpoint)
    state = newest(results, RUN)
    assert not isinstance(state, str)
    assert (state.phase, state.completed, state.failed) == ("performance", 700, 0)
    assert state.rate == pytest.approx(counts.per_second)
    assert state.elapsed_s == pytest.approx(700 / present(counts.per_second))
    assert state.offered == 2000
    assert sum(stage.share for stage in state.stages) == pytest.approx(1)
    queue = counts.stages["queue"]
    mean_s = {stage.name: stage.mean_s for stage in state.stages}["queue"]
    assert mean_s == pytest.approx(queue.sum / queue.total / 1e9)


def test_the_list_and_the_live_page_show_the_run(results: Path, endpoint: MetricsEndpoint) -> None:
    begin(endpoint)
    client = TestClient(make_app(results), base_url="http://127.0.0.1")
    running = client.get("/").text.partition('id="now"')[2].partition("</section>")[0]
    assert re.search(rf'<a href="/live/{RUN}" title="night">[^<]*</a>', running)
    assert "performance</span> <progress" in running
    page = client.get(f"/live/{RUN}").text
    assert f'data-events="/events/{RUN}"' in page
    assert '<dt>Answered</dt><dd>700 <span class="unit">queries</span></dd>' in page
    assert re.search(r"<dt>p99 latency</dt><dd>.*of 50\u00a0ms allowed", page)
    assert 'data-name="latency" data-unit="s"' in page
    assert '<noscript><meta http-equiv="refresh" content="5"></noscript>' in page


def asked(results: Path, **options: Any) -> str:
    """Returns the live page of a run with these options before the first query of the run."""
    result = json.loads((results / "server/result.json").read_text()) | {"model": EVIL}
    (results / RUN / "result.json").write_text(json.dumps(result))
    (results / RUN / "findings.json").write_text(json.dumps({"asked": options}))
    client = TestClient(make_app(results), base_url="http://127.0.0.1")
    return client.get(f"/live/{RUN}").text


def test_heading_names_a_model_and_dataset_of_one_name_once(tmp_path: Path) -> None:
    row = {"scenario": "server", "backend": "ort", "model": "digits", "dataset": "digits"}
    assert heading(tmp_path, Entry("run", "", row=row)).title == "digits · server · ort"


@pytest.mark.usefixtures("endpoint")
def test_the_heading_is_complete_before_the_first_query(results: Path) -> None:
    options = {"scenario": "server", "duration": "2min", "slo": "p90=5ms", "target_qps": 300.0}
    page = asked(results, **options)
    assert "<h1>&lt;script&gt;" in page
    assert '<a href="/">Runs</a> \u203a night</p>' in page
    assert "Planned: about 2\u00a0min, SLO p90=5ms" in page
    assert "loading the model and warming up" in page
    assert "Are 90\u00a0% of the queries answered within 5\u00a0ms at 300\u00a0queries/s?" in page
    page = asked(results, **{**options, "queries": 2010, "target_qps": None, "concurrency": 8})
    assert "Planned: 2,010 queries, SLO" in page
    assert "answered within 5\u00a0ms with 8 in flight?" in page
    # Bug: the page asked how long a query takes, until the harness had chosen a bound.
    page = asked(results, scenario="server", target_qps=300.0)
    assert "How long does a query take" not in page
    assert "of 300 requested" in page
    page = asked(results, scenario="offline", queries=1)
    assert "Planned: 1 sample<" in page
    assert "How many samples are answered in a second?" in page


def test_the_question_names_the_bound_and_the_rate_that_the_harness_chose(
    results: Path, endpoint: MetricsEndpoint
) -> None:
    begin(endpoint)
    assert (
        "Are 99\u00a0% of the queries answered within 50\u00a0ms at 2,000\u00a0queries/s?"
        in asked(results, scenario="server")
    )
    page = asked(results, scenario="server", duration="30s")
    assert "Planned: 700 queries<" in page  # a minimum number of queries can outlast 30 s
    page = asked(results, scenario="server", slo="p90=5ms", target_qps=300.0)
    assert "Are 90\u00a0% of the queries answered within 5\u00a0ms at 300\u00a0queries/s?" in page
    # Bug: both vanished in the accuracy phase, which has no rate.
    past = Past()
    bounds = [("p99", 0.05)]
    past.add(RUN, look(1.0, 9, offered=2000.0, planned=700.0, bounds_s=bounds))
    past.add(RUN, look(2.0, 5, bounds_s=bounds)._replace(phase="accuracy"))
    asked(results, scenario="server", duration="30s")
    panel = Watching(Index(results))._panel(RUN, past, "")
    assert "within 50\u00a0ms at 2,000\u00a0queries/s?" in panel
    assert "Planned: 700 queries<" in panel
    # Bug: the numbers of the accuracy phase replaced those of the result.
    assert "Performance phase:" in panel
    assert '<dt>Answered</dt><dd>9 <span class="unit">queries</span></dd>' in panel


@pytest.mark.usefixtures("endpoint")
@pytest.mark.parametrize("wrong", [{}, {"scenario": EVIL}, {"scenario": "server", "slo": [1]}])
def test_unusable_options_leave_the_names_of_a_run(results: Path, wrong: dict[str, Any]) -> None:
    page = asked(results, **wrong)
    assert " · server · ort</h1>" in page
    assert "Planned" not in page


def test_a_run_without_a_query_has_no_tiles(results: Path) -> None:
    """Bug: the first seconds showed tiles with 0 queries."""

    def panel(**changed: Any) -> str:
        past = Past()
        past.add(RUN, look(1.0, **changed))
        return Watching(Index(results))._panel(RUN, past, "")

    page = panel()
    assert "performance: waiting for the first query" in page
    assert 'class="tiles"' not in page
    assert 'class="tiles"' in panel(in_flight=1.0)


def test_a_run_that_was_interrupted_leads_to_its_page(results: Path) -> None:
    """Bug: its folder keeps its name, so the live page said `no metrics endpoint`, with no verdict and no link."""
    (results / RUN / ENDPOINT).unlink(missing_ok=True)
    shutil.copyfile(results / "server/result.json", results / RUN / "result.json")
    watching = Watching(Index(results))
    past, problem = watching._look(RUN)
    panel = watching._panel(RUN, past, problem)
    assert f'<a id="next" href="/run/{RUN}">open its page</a>' in panel
    assert '<p class="quiet">Final numbers:</p>' in panel
    assert watching.ended_page(RUN) == f"/run/{RUN}"


def test_a_killed_run_is_listed_and_leads_to_its_page(
    results: Path, endpoint: MetricsEndpoint
) -> None:
    """Bug: its folder keeps the address of its metrics, so the list said that it had no readable result, and the live page
    led nowhere.
    """
    result = json.loads((results / "server/result.json").read_text())
    died = {"verdict": "INVALID", "reasons": [{"code": "did-not-finish", "text": "killed"}]}
    (results / RUN / "result.json").write_text(json.dumps({**result, **died}))
    client = TestClient(make_app(results), base_url="http://127.0.0.1")
    assert f'href="/live/{RUN}"' in client.get("/").text  # its endpoint answers
    (results / RUN / ENDPOINT).write_text("127.0.0.1:1")
    listed = client.get("/").text
    assert f'href="/run/{RUN}"' in listed
    assert "without a usable result" not in listed
    assert client.get(f"/live/{RUN}").url.path == f"/run/{RUN}"


def test_events_end_with_the_run(
    results: Path, endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PERIOD_S", 0.01)
    monkeypatch.setattr("harness.browse.live.past.LEAST_S", 0.0)
    begin(endpoint, query_count=1400)

    async def watch() -> list[str]:
        events = Watching(Index(results)).events(RUN)
        found = [await anext(events) for _ in range(4)]
        # The process that writes the folder also removes this file.
        (results / RUN / ENDPOINT).unlink()
        (results / RUN).rename(results / "night")
        result = json.loads((results / "server/result.json").read_text())
        reasons = [{"code": "slo-missed", "text": f"too slow {EVIL}"}]
        judged = {"slo": "p99=50ms", "late": 8, "of": 700}
        changed = {**result, "verdict": "INVALID", "reasons": reasons, "slo": judged["slo"]}
        changed["goodput"] = {"slos": [judged]}
        changed["queries"] = {**result["queries"], "late": 9}  # LoadGen's number counts
        (results / "night/result.json").write_text(json.dumps(changed))
        return found + [event async for event in events]

    # The points precede the panel of the same second, with which the page draws them.
    points, first, more, second, last = asyncio.run(watch())
    assert first.startswith("event: state\ndata: ")
    opening, since, *_ = pointed(points)  # the endpoint may take another snapshot by itself
    assert (opening["t"], opening["mark"], since["mark"]) == (0, "performance", None)
    # Both points of the rate chart show the mean since the first query.
    assert opening["charts"]["rate"] == since["charts"]["rate"]
    assert "0.00 in the last second" in second
    point = pointed(more)[-1]
    assert point["charts"]["rate"] == {"answered": 0, "requested": 2000}
    assert (point["mark"], point["bounds"]) == (None, {"latency": {"p99": 0.05}})
    assert all(line.startswith("data: ") for line in last.splitlines()[1:-1])
    assert "event: end\n" in last
    # Bug: the verdict appeared without its doubts.
    assert '<span class="badge invalid">INVALID</span> <span class="chip uncertain"' in last
    assert '<p id="end">' in last
    assert "too slow &lt;script&gt;" in last
    assert 'The run has ended: <a id="next" href="/run/night">open its page</a>' in last
    assert '<dl class="tiles">' in last
    assert "in the last second" not in last  # bug: such numbers appeared next to the verdict
    labels = re.findall("<dt>(.*?)</dt>", last)
    assert labels == re.findall("<dt>(.*?)</dt>", second)  # the page keeps its layout
    assert '<dd class="reason">9 <span class="unit">queries</span></dd>' in last
    client = TestClient(make_app(results), base_url="http://127.0.0.1")
    # Bug: a live page that was reloaded after the end said that charts begin with the first answers.
    assert client.get(f"/live/{RUN}").url.path == "/run/night"
    assert client.get(f"/events/{RUN}").status_code == 404


def pointed(event: str) -> list[dict[str, Any]]:
    name, _, data = event.partition("\n")
    assert name == "event: points"
    points: list[dict[str, Any]] = json.loads(data.removeprefix("data: "))
    return points


def test_a_page_opened_before_the_first_file_learns_its_name(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: for its whole life, such a page named a run a study, and did not notice that the run had died."""
    begun = ResultFolder(results / "early")
    client = TestClient(make_app(results), base_url="http://127.0.0.1")
    assert 'data-name=""' in client.get("/live/early.partial").text
    result = json.loads((results / "server/result.json").read_text()) | {"model": "a\x07 <b>"}
    (begun.path / ENDPOINT).write_text("127.0.0.1:1\n")
    (begun.path / "result.json").write_text(json.dumps(result))
    monkeypatch.setattr(watching, "PERIOD_S", 0.01)
    (named,) = re.findall("event: name\ndata: (.+)\n", client.get("/events/early.partial").text)
    assert re.fullmatch("[0-9a-f]{64}", named)
    # The page would be loaded again and again if the names differed, such as by an escape.
    assert f'data-name="{named}"' in client.get("/live/early.partial").text


def test_the_numbers_of_the_previous_run_stay_until_the_next_one_begins() -> None:
    """Bug: the numbers vanished while the next run of a search loaded, and then showed the rate of the previous run
    beside the requested rate of the next.
    """
    past = Past()
    for at_s, completed in ((1.0, 100.0), (2.0, 200.0)):
        past.add("a", look(at_s, completed, elapsed_s=at_s))
    assert past.latest("rate", "answered") == 100
    loading = look(3.0, elapsed_s=0.0)._replace(phase="")
    past.add("b", loading)
    assert past.begun is not None
    assert past.begun.completed == 200
    assert past.latest("rate", "answered") == 100
    past.add("b", look(60.0, 10, elapsed_s=4.0))
    assert past.begun.completed == 10
    assert past.latest("rate", "answered") == 2.5


def test_the_next_run_of_a_search_follows_without_the_time_to_load() -> None:
    """Bug: the loading of the next runs took most of the charts, so a run was a few pixels wide."""
    past = Past()
    for run, begun_s in (("a", 0.0), ("b", 40.0)):
        for elapsed_s in (1.0, 2.0):
            past.add(run, look(begun_s + elapsed_s, 100 * elapsed_s, elapsed_s=elapsed_s))
    times_s = [one["t"] for one in past.points if one["charts"]]
    last = times_s.index(2.0)
    assert times_s[last + 1 :] == pytest.approx([x + times_s[last + 1] for x in (0.0, 1.0, 2.0)])
    assert times_s[last + 1] < 2.0 + 2 * BETWEEN_RUNS_S


def test_a_search_is_watched_over_all_its_runs(
    results: Path, endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PERIOD_S", 0.01)
    search = results / "peak.partial"
    search.mkdir()
    (results / RUN).rename(search / RUN)
    done = search / "01-calibration"
    done.mkdir()
    (done / "result.json").write_bytes((results / "server/result.json").read_bytes())
    begin(endpoint)
    client = TestClient(make_app(results), base_url="http://127.0.0.1")
    listed = client.get("/").text
    below = listed.partition('<a href="/live/peak.partial" title="peak">peak</a>')[2]
    assert '<li class="inside"><a href="/live/peak.partial/night.partial" ' in below
    page = client.get("/live/peak.partial").text
    assert '<a href="/live/peak.partial/night.partial">night</a>: performance' in page
    assert '<a href="/run/peak.partial/01-calibration">01-calibration</a>' in page
    assert "night since the start:" in page  # while a run is in progress, its own numbers count

    async def watch() -> list[str]:
        events = Watching(Index(results)).events("peak.partial")
        found = [await anext(events) for _ in range(3)]
        assert found[-1].startswith("event: state")
        (search / RUN / ENDPOINT).unlink()  # the file is missing between two runs of the search
        found.append(await anext(events))
        (search / RUN / "result.json").write_bytes((done / "result.json").read_bytes())
        (search / RUN).rename(search / "night")
        (search / "peak.json").write_text("{}")
        search.rename(results / "peak")
        return found + [event async for event in events]

    listed, points, state, between, last, end = asyncio.run(watch())
    assert "performance" in state
    assert listed.startswith("event: done")
    # Bug: the last run was missing from the table at the end.
    assert last.startswith("event: done")
    assert '<a href="/run/peak/night">' in last
    ended, *drawn = pointed(points)
    # A run that ended before it could be watched has its final numbers in the charts.
    assert (ended["mark"], ended["is_final"]) == ("01-calibration performance", True)
    result = json.loads((results / "server/result.json").read_text())
    p99_s = result["latency_ns"]["p99"] / 1e9
    assert ended["charts"]["latency"]["p99"] == pytest.approx(p99_s, rel=1e-3)
    assert drawn[0]["mark"] == "night performance"
    assert watching.NOT_WRITTEN in between  # no process holds the lock of this folder
    assert "01-calibration, final numbers:" in between
    assert 'The peak has ended: <a id="next" href="/study/peak">open its page</a>' in end


def test_a_run_whose_result_cannot_be_drawn_leaves_the_charts_as_they_are() -> None:
    """Bug: it left its name in the chart of the next run, every second."""
    past = Past()
    with pytest.raises(AttributeError):
        past.add_ended("s.partial/probes/01-bad", {"scenario": "server", "tokens": [1]})
    assert past.has_drawn("s.partial/probes/01-bad")
    for at_s in (1.0, 2.0):
        past.add("s.partial/probes/02-run", look(at_s, 100 * at_s, elapsed_s=at_s))
    assert [one["mark"] for one in past.points if one["mark"]] == ["02-run performance"]


def test_an_ended_offline_run_has_no_latency() -> None:
    """Its latency shows only how many samples were issued."""
    result = {
        "scenario": "offline",
        "latency_ns": {"p99": 2e9},
        "throughput_per_s": {"completed": 5.0},
    }
    assert [*point_of_ended(result, 1.0)["charts"]] == ["rate"]


def test_a_bar_never_goes_back(tmp_path: Path) -> None:
    """Bug: it fell when a search needed more runs than planned."""
    made = ResultFolder(tmp_path / "s")  # which holds the lock of a study in progress
    shown, past, watching = [], Past(), Watching(Index(tmp_path))
    for left_s in (10.0, 40.0, 5.0):
        noted = {"text": "run", "begun_s": time.time() - 10, "ends_s": time.time() + left_s}
        (made.path / "progress.json").write_text(json.dumps(noted))
        page = watching._panel("s.partial", past, BETWEEN_RUNS)
        shown += re.findall('class="whole" max="1" value="([0-9.]+)"', page)
    assert [round(float(one), 1) for one in shown] == [0.5, 0.5, 0.7]


@pytest.mark.parametrize("begun_s", [None, "x"])
def test_a_step_without_a_begin_keeps_its_text(tmp_path: Path, begun_s: object) -> None:
    """Bug: the text and the time left vanished, too, for a study of an older version."""
    noted = {"text": "run 3 of 9, about", "begun_s": begun_s, "ends_s": time.time() + 119.5}
    (tmp_path / "study").mkdir()
    (tmp_path / "study/progress.json").write_text(json.dumps(noted))
    assert step(tmp_path, "study") == Step("run 3 of 9, about 2 min left in all")
    (tmp_path / "study/progress.json").write_text(
        json.dumps({**noted, "text": "run 9 of 9: ended", "ends_s": None})
    )
    assert step(tmp_path, "study") == Step("run 9 of 9: ended", has_ended=True)


def test_an_accuracy_phase_after_a_performance_phase_is_not_drawn() -> None:
    """Bug: its rates set the axes of the measured run."""
    past = Past()
    for at_s in (10.0, 11.0):
        past.add("run", look(at_s, 5 * at_s))
    drawn = list(past.points)
    for at_s in (12.0, 13.0):
        past.add("run", look(at_s, 500 * at_s)._replace(phase="accuracy"))
    assert list(past.points) == drawn
    assert past.latest("rate", "answered") is None  # the last rate is that of another phase
    alone = Past()
    for at_s in (12.0, 13.0):
        alone.add("run", look(at_s, 500 * at_s)._replace(phase="accuracy"))
    assert alone.latest("rate", "answered") == 500


def test_the_curves_do_not_begin_with_a_rate_over_a_few_ms() -> None:
    """Bug: 62 answers/s over the first 32 ms set the axis of a run with 5/s."""
    past = Past()
    past.add("run", look(10.0, 2, elapsed_s=0.032))
    past.add("run", look(11.0, 7, elapsed_s=1.0))
    assert [one["charts"]["rate"]["answered"] for one in past.points] == [6.783] * 2  # 7 in 1.032 s


def test_the_last_values_stay_when_all_is_answered() -> None:
    """Bug: the rate fell to 0 while the run was scored, and its tile disappeared at the end."""
    past = Past()
    past.add("run", look(10.0, 0, in_flight=5.0))
    past.add("run", look(11.0, 300, in_flight=5.0, elapsed_s=1.0))
    for at_s in (12.0, 13.0):
        past.add("run", look(at_s, 400, progress=1.0, elapsed_s=1.2))
    assert past.latest("rate", "answered") == 300
    # Bug: the last point had answers in flight, beside a tile without any.
    assert (past.points[-1]["t"], past.points[-1]["charts"]) == (1.2, {"queue": {"in flight": 0}})
    assert len(past.points) == 3
    assert present(past.last).completed == 400
    short = Past()  # this run ends before the second reading
    short.add("run", look(10.0, 400, progress=1.0, elapsed_s=2.0))
    assert short.latest("rate", "answered") == 200


def test_a_page_opened_late_shows_the_run_from_its_first_query(
    results: Path, endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: the charts began when the page was opened, with a hole for each time in which it was closed."""
    monkeypatch.setattr("harness.browse.live.past.LEAST_S", 0.0)
    begin(endpoint, query_count=1400)
    for _ in range(3):
        newest(results, RUN)  # the endpoint also takes a snapshot each second by itself
    past, problem = Watching(Index(results))._look(RUN)
    assert (problem, past.points[0]["t"], past.points[0]["mark"]) == ("", 0, "performance")
    assert len(past.points) >= 4
    known = present(past.last).at_s
    later = snapshots.snapshots(results, RUN, known)
    assert not isinstance(later, str)
    assert later
    assert all(one.at_s > known for one in later)


def test_the_curves_wait_for_the_first_query() -> None:
    past = Past()
    past.add("run", look(8.0))  # the process has not issued its first query yet
    past.add("run", look(10.0, in_flight=5.0))
    assert list(past.points) == []
    past.add("run", look(11.0, 40, in_flight=5.0))
    assert [one["t"] for one in past.points] == [0, 1]
    assert past.points[0]["charts"]["queue"] == {"in flight": 5}


def test_events_end_when_the_run_dies(
    results: Path, endpoint: MetricsEndpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "PERIOD_S", 0.01)
    endpoint.__exit__()
    client = TestClient(make_app(results), base_url="http://127.0.0.1")
    events = client.get(f"/events/{RUN}").text
    assert events.count("event:") == 1
    assert "Connection refused): it has ended, or died" in events
    assert "STOPPED</span>" in events
    page = client.get("/").text
    assert "Running now" not in page
    assert "Connection refused): it has ended, or died" in page


def test_a_different_run_at_the_address_is_rejected(
    results: Path, endpoint: MetricsEndpoint
) -> None:
    endpoint.exporter.describe_run({**LABELS, "run": "day"}, {"version": "1"})
    state = newest(results, RUN)
    assert isinstance(state, str)
    assert state.startswith("a different run answers at 127.0.0.1:")


@pytest.mark.parametrize(
    ("noted", "reason"),
    [
        ("203.0.113.7:80", "203.0.113.7 is not an address of this machine"),
        ("[2001:db8::1]:80", "2001:db8::1 is not an address of this machine"),
        ("169.254.169.254:80", "169.254.169.254 is not an address of this machine"),
        ("localhost:80", "'localhost' does not appear to be an IPv4 or IPv6 address"),
        ("http://127.0.0.1/", "is not an address: write HOST:PORT"),
        ("127.0.0.1:99999", "is not an address: write HOST:PORT"),
        ("\xff", "can't decode"),
    ],
)
def test_an_invalid_endpoint_file_is_refused(results: Path, noted: str, reason: str) -> None:
    (results / RUN / ENDPOINT).write_bytes(noted.encode("latin-1"))
    state = newest(results, RUN)
    assert isinstance(state, str)
    assert state.startswith(f"its {ENDPOINT} cannot be used: ")
    assert reason in state


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.0 200 OK\r\n\r\n# HELP up 1\n", "is not the state of a run"),
        (b"HTTP/1.0 200 OK\r\n\r\n\xff\xfe", "is not the state of a run"),
        (b'HTTP/1.0 200 OK\r\n\r\n["night",[]]', "a different run answers"),
        (b"HTTP/1.0 404 No\r\n\r\n", "the answer is not a page"),
        (b"SSH-2.0-x\r\n", "the answer is not a page"),
    ],
)
def test_an_answer_of_another_program_is_reported(
    results: Path, answer: bytes, reason: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        (results / RUN / ENDPOINT).write_text(f"{host}:{port}\n")
        threading.Thread(target=_answer, args=(server, answer), daemon=True).start()
        state = newest(results, RUN)
    assert isinstance(state, str)
    assert re.search(reason, state), state


def _answer(server: socket.socket, content: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        connection.recv(1000)
        connection.sendall(content)


def test_an_answer_that_drips_is_abandoned(results: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "LIMIT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        host, port = server.getsockname()
        (results / RUN / ENDPOINT).write_text(f"{host}:{port}\n")
        threading.Thread(target=_drip, args=(server,), daemon=True).start()
        begun_s = time.monotonic()
        state = newest(results, RUN)
        assert time.monotonic() - begun_s < 5
    assert isinstance(state, str)
    assert "the run does not answer at" in state


def _drip(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        try:
            for _ in range(1000):
                connection.sendall(b"H")
                time.sleep(0.05)
        except OSError:
            return


def test_a_run_on_a_machine_that_others_use_is_warned_about() -> None:
    """Bug: only a chart at the end of the page showed that other programs used most cores."""

    def warning(others_s: float) -> str:
        past = Past()
        for second in range(1, 6):
            cpu = {"run_cpu_s": 0.1 * second, "busy_s": (0.1 + others_s) * second, "stolen_s": 0.0}
            past.add("", look(float(second), 10 * second, elapsed_s=second, cores=2, **cpu))
        return watching._disturbance(past)

    assert "Other programs use 75 % of the cores" in warning(1.5)
    assert warning(0.1) == ""
