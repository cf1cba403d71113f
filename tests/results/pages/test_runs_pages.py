"""`runs --history` and `--pareto` draw the right runs."""

import html
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.results import database
from harness.results.numbers import Number
from harness.results.pages.page import Article
from harness.results.pages.runs.configurations import beats
from harness.results.pages.runs.history import history
from harness.results.pages.runs.pareto import pareto
from harness.results.pages.runs.rows import load_text, named, numbers, reports_in, run_name
from harness.results.pages.runs.rows import shown as cell_of
from tests.builders.refusals import Said
from tests.builders.result import stored_result
from tests.stand_ins.chromium import needs_chromium, shown

HOSTILE = "<img src=x onerror=alert(1)>"


def measured(day: int, rate: float, p99_ms: float, top1: float, joules: float, **more: Any) -> Any:
    """rate: rate of completions; the requested rate of Server was 1,000/s."""
    reading = {"source": "rapl:psys", "provenance": "measured", "joules_per_sample": joules}
    return stored_result(
        f"2026-01-{day:02}T10:00:00.000+00:00",
        headline={"value": rate, "unit": "queries/s"},
        throughput_per_s={"completed": rate, "asked": 1000.0},
        latency_ns={"p50": 1_000_000, "p99": int(p99_ms * 1e6)},
        accuracy={"metric": "top1", "value": top1, "lower_is_better": False},
        power={"readings": [reading]},
        **{"slo": "p99=10ms", **more},
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """No run beats `best`. Another run beats `frugal` in speed, and `poor` in everything. `bad` is INVALID, `fast` ran
    on another machine, and `noisy` ran in another scenario.
    """
    folder = tmp_path / "results"
    folder.mkdir()
    made = {
        "best": measured(1, 2000, 5, 99.0, 0.4),
        "frugal": measured(2, 1000, 9, 98.0, 0.1, model="small"),
        "poor": measured(3, 900, 9.5, 97.0, 0.5, model=HOSTILE),
        "bad": measured(
            4, 9000, 1, 99.9, 0.01, verdict="INVALID", reasons=[{"code": "slo-missed"}]
        ),
        "fast": measured(5, 9000, 1, 99.9, 0.01, environment={"machine": {"host": "beta"}}),
        "noisy": measured(6, 9000, 1, 99.9, 0.01, scenario="offline"),
        "noise": measured(5, 8000, 1, 99.9, 0.01, scenario="offline"),
        "again": measured(7, 1800, 6, 99.0, 0.4),
    }
    for name, content in made.items():
        database.add(folder, name, content)
    (folder / "best").mkdir()
    (folder / "best/report.html").touch()
    return folder


def rows(results: Path, **conditions: str) -> list[dict[str, Any]]:
    return database.newest_first(results, None, **conditions)


def text(article: Article) -> str:
    return "\n".join([*article.head, *article.tail])


def test_a_run_is_named_by_its_start() -> None:
    """Bug: a narrow column broke the name of a folder into eight lines."""
    assert run_name("2026-11-28T15-26-40Z-server-ort-model") == "2026-11-28 15:26:40"
    for folder in ("mine", "2026-11-28T15-26-40Z-peak-server/probes/01-probe"):
        assert run_name(folder) == folder


def fronts(article: Article) -> dict[str, str]:
    """Maps a configuration, without its letter, to its cell about the front."""
    row = "<tr><td[^>]*>[A-Z]: (.*?)</td><td[^>]*>(.*?)</td>"
    return dict(re.findall(row, "".join(article.tail)))


def figure(article: Article, title: str) -> Any:
    (found,) = [f for f in article.figures if f.title == title]
    return found


def test_a_history_shows_one_workload_on_one_machine(results: Path) -> None:
    articles = history(rows(results), reports_in(results, results / "page.html"))
    titles = [re.sub("<.*?>", "", a.head[0]) for a in articles]
    assert titles[1:] == [
        "digits · server · ort · 1,000 queries/s",
        "digits · offline · ort",
    ]
    assert "3 runs on alpha, 1 of them INVALID" in text(articles[1])
    links = re.findall(r'<a href="#(.*?)">(.*?)</a>', text(articles[0]))
    assert [title for _, title in links] == [f"{titles[1]} · alpha", titles[2]]
    assert all(
        f'id="{name}"' in text(one) for (name, _), one in zip(links, articles[1:], strict=True)
    )


def cells(article: Article, first: str) -> list[str]:
    """Returns the cell texts of a table row. first: part of the row's first cell."""
    (row,) = [r for r in text(article).split("<tr>") if first in r.partition("</td>")[0]]
    return [re.sub("<.*?>", "", cell) for cell in re.findall("<td.*?>(.*?)</td>", row)]


def test_overview_of_the_history_has_the_newest_result_of_each_workload(results: Path) -> None:
    first, *_ = history(rows(results), reports_in(results, results / "page.html"))
    server = cells(first, "digits · server · ort · 1,000 queries/s · alpha")
    assert server[1:] == [
        "3, 1 INVALID",
        "2026-01-07 10:00",
        "p99 6.00 ms",
        "+20.0 % (worse), too few runs to judge",
    ]
    assert "course" not in text(first)  # a course needs four runs
    # Bug: each workload with a single run had an article with one row.
    assert "<details><summary>3 workloads with a single run" in text(first)
    alone = cells(first, "small on digits")
    assert alone[1:] == ["frugal", "VALID", "p99 9.00 ms"]


@pytest.mark.parametrize(
    ("p99s_ms", "against"),
    [
        ([5, 6, 7, 8], "+33.3 %, worse than all 3"),
        ([6, 7, 8, 5], "-28.6 %, better than all 3"),
        ([5, 8, 6, 7], "+16.7 %, within their range"),
        ([5, 8], "+60.0 % (worse), too few runs to judge"),
    ],
)
def test_newest_run_is_compared_with_the_range_of_the_runs_before(
    results: Path, p99s_ms: list[float], against: str
) -> None:
    for day, p99_ms in enumerate(p99s_ms, 10):
        # The test needs two workloads, because a single workload has no overview.
        for model in ("own", "other"):
            run = measured(day, 1000, p99_ms, 99.0, 0.4, model=model)
            database.add(results, f"{model}-{day}", run)
    since = rows(results, since="2026-01-10")
    first, *_ = history(since, reports_in(results, results / "page.html"))
    assert cells(first, "own on digits")[4] == against
    assert ("<polyline" in text(first)) is (len(p99s_ms) > 3)


def test_a_study_with_several_settings_has_no_course(results: Path) -> None:
    """Bug: the batch sizes of a grid looked like a course, with a change against their median."""
    found = rows(results, model="digits", host="alpha", scenario="server")
    others = rows(results, scenario="offline")
    for folder, settings, against in (
        ("grid/{}", "{}", ""),
        ("repeats/{}", "same", "+20.0 % (worse), too few runs to judge"),
        (
            "{}",
            "{}",
            "+20.0 % (worse), too few runs to judge",
        ),  # runs of a user follow a workload over its changes
    ):
        inside = [
            {**row, "folder": folder.format(i), "settings": settings.format(i)}
            for i, row in enumerate(found)
        ]
        first, *_ = history([*inside, *others], lambda _: None)
        assert cells(first, "digits · server")[4] == against


def test_line_of_the_history_connects_only_valid_runs(results: Path) -> None:
    (first,) = history(
        rows(results, scenario="server", host="alpha", model="digits"),
        reports_in(results, results / "page.html"),
    )
    line, crosses, key = figure(first, "Latency").data
    assert line["name"] == "p99"
    assert line["x"] == ["best", "again"]
    assert line["meta"] == {"links": ["best/report.html", None]}
    axis = figure(first, "Latency").layout["xaxis"]
    assert axis["title"] == "runs in order, named by start (UTC)"
    assert line["y"] == [5, 6]
    assert (crosses["y"], crosses["mode"], crosses["legendgroup"]) == ([1], "markers", "p99")
    assert (key["name"], key["y"]) == ("INVALID", [None])
    more = ["Accuracy top1", "Joules per sample rapl:psys"]
    assert [f.title for f in first.figures] == ["Latency", *more]
    # P50 has no plot, because a flat line would show nothing more.
    assert "Without a change: p50 1.00 ms." in text(first)
    # Bug: the axis reached 101 %.
    assert figure(first, "Accuracy top1").layout["yaxis"]["maxallowed"] == 100


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (Number(300_590.0, "samples/s", "rate"), "300,590 samples/s"),
        (Number(0.66164, "ms"), "662 us"),
        (Number(99.2, "%", "exact"), "99.20 %"),
        (Number(0.4567891, "mAP", "exact"), "0.4568 mAP"),
        (Number(0.0004, "J"), "400 uJ"),
        (None, "-"),
    ],
)
def test_the_table_has_units_and_no_powers_of_ten(number: Number | None, text: str) -> None:
    """Bug: the table contained `3.0059e+05 samples/s` and `0.66164 ms`."""
    assert cell_of(number) == text


def test_requested_rate_is_not_drawn_as_a_result(results: Path) -> None:
    """Bug: the rate of a Server run was drawn as its throughput, so a higher requested rate looked better.

    Runs at different loads count as different workloads, but the load that `peak` found is a result.
    """
    twice = measured(8, 2000, 5, 99.0, 0.4)
    twice["throughput_per_s"]["asked"] = 2000.0
    database.add(results, "twice", twice)
    for day, peak in ((9, 1500.0), (10, 1600.0)):
        database.add(results, f"peak-{day}", measured(day, peak, 9.9, 99.0, 0.4), peak)
    closed = measured(11, 700, 5, 99.0, 0.4, arrivals={"concurrency": 8, "schedule_sha256": None})
    database.add(results, "closed", closed)
    known = {row["folder"]: (load_text(row), set(numbers(row))) for row in rows(results)}
    both = {"accuracy.top1", "joules_per_sample.rapl:psys"}
    latency = {"p50", "p99"}
    assert known["best"] == ("1,000 queries/s", both | latency)
    assert known["twice"] == ("2,000 queries/s", both | latency)
    assert known["peak-9"] == ("peak at p99=10ms", both | {"peak"})
    assert known["closed"] == ("8 in flight", both | latency | {"throughput"})
    assert known["noisy"] == ("", both | {"throughput"})
    found = pareto(rows(results, since="2026-01-08"), reports_in(results, results / "page.html"))
    (peaks,) = [one for one in found[1:] if "peak at" in text(one)]
    assert "<h1>digits · server · ort · peak at p99=10ms</h1>" in text(peaks)
    plot = figure(peaks, "Peak of each configuration")
    assert sorted(trace["x"][0] for trace in plot.data) == [1500.0, 1600.0]


def test_a_database_of_the_first_version_is_read_and_completed(results: Path) -> None:
    """The Server rows have no rate, so they are a separate workload."""
    path = database.path_in(results)
    with closing(sqlite3.connect(path)) as db, db:
        for name in ("asked_per_s", "concurrency", "arrivals_sha256", "samples_per_query"):
            db.execute(f"ALTER TABLE runs DROP COLUMN {name}")
        for name in ("slo", "dataset_digest", "peak", "framework"):
            db.execute(f"ALTER TABLE runs DROP COLUMN {name}")
        db.execute("PRAGMA user_version = 1")
    before = path.read_bytes()
    (old,) = [row for row in rows(results) if row["folder"] == "best"]
    assert (load_text(old), old["p99_ns"]) == ("unknown rate", 5_000_000)
    assert path.read_bytes() == before
    database.add(results, "new", measured(12, 1000, 5, 99.0, 0.4))
    loads = {row["folder"]: load_text(row) for row in rows(results)}
    assert (loads["best"], loads["new"]) == ("unknown rate", "1,000 queries/s")
    # Bug: the run with the least load, e.g. the fewest streams, beat the others.
    found = pareto(rows(results), reports_in(results, results / "page.html"))
    assert "unknown rate" not in "".join(map(text, found))


def test_a_run_with_only_an_accuracy_is_on_no_front(results: Path) -> None:
    """Bug: a run of --mode accuracy was on the front of Offline, because it was measured in fewer numbers."""
    nothing: Any = {"headline": None, "throughput_per_s": None, "latency_ns": None, "power": None}
    database.add(results, "score", {**measured(12, 1000, 5, 99.9, 0.4), **nothing})
    found = pareto(rows(results), reports_in(results, results / "page.html"))
    assert "score" not in "".join(map(text, found))


def test_a_run_with_another_version_than_before_is_marked(results: Path) -> None:
    def of(day: int, framework: str | None, commit: str = "a" * 40) -> None:
        environment = {"machine": {"host": "alpha"}, "harness": {"commit": commit}}
        about = None if framework is None else {"framework": framework}
        more = {"environment": environment, "backend_description": about, "model": "own"}
        database.add(results, f"own-{day}", measured(day, 1000, day, 99.0, 0.4, **more))

    of(10, "onnxruntime 1.23.0")
    of(11, "onnxruntime 1.23.0")
    of(12, "onnxruntime 1.24.1", "b" * 40)
    of(13, None, "b" * 40)
    (article,) = history(rows(results, model="own"), reports_in(results, results / "page.html"))
    drawn = figure(article, "Latency")
    ((x, letter),) = [(mark["x0"], mark["label"]["text"]) for mark in drawn.layout["shapes"]]
    assert x == 1.5  # 1.5 lies between the second run and the third
    # Bug: the names of the versions covered the lines of each plot.
    assert letter == "A"
    version = f"onnxruntime 1.24.1, harness {'b' * 7} from 01-12 10:00:00 on"
    assert f'<b>A</b>\u00a0<span class="whole">{version}</span>' in text(article)


def test_workload_with_few_runs_has_a_table_only_beside_others(results: Path) -> None:
    """Bug: two points filled a plot, and the page of 34 runs was 9,000 pixels long on a phone."""
    for day in range(10, 14):
        database.add(results, f"own-{day}", measured(day, 1000, day, 99.0, 0.4, model="own"))
    few = measured(14, 1000, 6, 99.0, 0.4, model="own", scenario="single-stream")
    database.add(results, "few-1", few)
    database.add(results, "few-2", few)
    linked = reports_in(results, results / "page.html")
    overview, *both = history(rows(results, model="own"), linked)
    drawn = {re.sub("<.*?>", "", one.head[0]): bool(one.figures) for one in both}
    assert drawn == {
        "own on digits · single-stream · ort": False,
        "own on digits · server · ort · 1,000 queries/s": True,
    }
    # The machine of all runs is named once.
    assert text(overview).count("alpha") == 1
    assert not any("alpha" in text(one) for one in both)
    (alone,) = history(rows(results, model="own", scenario="single-stream"), linked)
    assert alone.head[0].startswith("<h1>History")


def test_history_names_at_most_six_starts_the_newest_among_them(results: Path) -> None:
    for day in range(10, 25):
        database.add(results, f"own-{day}", measured(day, 1000, day, 99.0, 0.4, model="own"))
    (article,) = history(rows(results, model="own"), reports_in(results, results / "page.html"))
    axis = figure(article, "Latency").layout["xaxis"]
    assert axis["ticktext"] == [f"01-{day}<br>10:00" for day in (24, 21, 18, 15, 12)]
    assert len(axis["categoryarray"]) == 15


def test_invalid_run_is_marked_in_overview_and_plots(results: Path) -> None:
    for day in range(15, 18):
        bad = measured(day, 1000, 20, 99.0, 0.4, verdict="INVALID", model="own")
        database.add(results, f"own-{day}", bad)
    database.add(results, "own-14", measured(14, 1000, 5, 99.0, 0.4, model="own"))
    first, *_ = history(rows(results), reports_in(results, results / "page.html"))
    (row,) = [r for r in text(first).split("<tr>") if "own on digits" in r]
    # Bug: an INVALID run was the newest result, and the result before it was not shown.
    later = (
        '<span class="badge invalid">INVALID</span> of <span class="whole">2026-01-17 10:00</span>'
    )
    assert f'p99 5.00 ms<br><span class="quiet">newer: {later}</span>' in row
    assert row.count('<path class="reason"') == 3
    assert row.count('fill="currentColor"') == 1


def test_runs_of_one_minute_are_named_by_their_seconds(results: Path) -> None:
    """Bug: runs within a minute had the same tick twice, and two runs within a second were one point."""
    for number in range(4):
        database.add(results, f"own-{number}", measured(10, 1000, 5 + number, 99, 0.4, model="own"))
    (article,) = history(rows(results, model="own"), reports_in(results, results / "page.html"))
    axis = figure(article, "Latency").layout["xaxis"]
    assert axis["ticktext"] == ["01-10<br>10:00:00"]
    assert axis["categoryarray"] == [f"own-{number}" for number in range(4)]


def test_workload_without_a_valid_run_shows_its_newest_run_as_invalid(results: Path) -> None:
    for day in (15, 16):
        bad = measured(day, 1000, 20, 99.0, 0.4, verdict="INVALID", model="own")
        database.add(results, f"own-{day}", bad)
    first, *_ = history(rows(results), reports_in(results, results / "page.html"))
    assert cells(first, "own on digits")[1:5] == [
        *("2, 2 INVALID", "-", "p99 20.0 ms INVALID of 2026-01-16 10:00", "")
    ]


def test_the_history_shows_token_times(results: Path) -> None:
    """Bug: the history did not show that the first token came later from run to run."""
    for day, ttft_ns in ((20, 5_000_000), (21, 9_000_000)):
        tokens = {
            "output_per_s": 90.0 + day,
            "ttft_ns": {"p50": 1, "p99": ttft_ns},
            "tpot_ns": None,
        }
        run = measured(day, 1000, 5, 99.0, 0.4, tokens=tokens, model="tinylm")
        database.add(results, f"tinylm-{day}", run)
    (article,) = history(rows(results, model="tinylm"), reports_in(results, results / "page.html"))
    (line,) = figure(article, "TTFT").data
    assert (line["name"], list(line["y"])) == ("p99", [5.0, 9.0])
    assert figure(article, "Tokens")


def test_the_history_links_to_reports_that_are_there(results: Path) -> None:
    (results / "pages").mkdir()
    page = results / "pages/page.html"
    article = history(rows(results, model="digits"), reports_in(results, page))[1]
    assert '<a href="../best/report.html">best</a>' in text(article)
    assert ">again</td>" in text(article)


def test_page_has_at_most_twelve_workloads_and_names_the_rest(results: Path) -> None:
    for n in range(12):
        for day in (8, 9):
            database.add(results, f"more{n}-{day}", measured(day, 1, 1, 1, 1, model=f"m{n}"))
    articles = history(rows(results), reports_in(results, results / "page.html"))
    assert len(articles) == 13
    assert "2 more workloads are not shown" in text(articles[0])


@pytest.mark.parametrize("value", ["text", float("nan"), float("inf"), None, b"1"])
def test_value_that_is_not_a_number_is_not_drawn(value: object) -> None:
    row = dict.fromkeys(database.COLUMNS) | {"scenario": "server", "p99_ns": value}
    assert numbers(row) == {}


def of(**values: float) -> dict[str, Number]:
    return {
        name: Number(value, "", higher_is_better=name == "rate") for name, value in values.items()
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (of(rate=2, p99=1), of(rate=1, p99=2), True),
        (of(rate=2, p99=1), of(rate=2, p99=2), True),
        (of(rate=2, p99=1), of(rate=2, p99=1), False),
        (of(rate=2, p99=3), of(rate=1, p99=2), False),
        (of(rate=2, p99=1), of(rate=1), True),
        (of(rate=2), of(rate=1, p99=9), False),
    ],
)
def test_run_beats_another_if_better_in_one_number_and_worse_in_none(
    ours: Any, theirs: Any, found: bool
) -> None:
    assert beats(ours, theirs) is found


def configured(day: int, rate: float, p99_ms: float, **plan: Any) -> Any:
    """A run of Offline whose settings are known. rate: rate of completions."""
    more = {"scenario": "offline", "plan": {"threads": 1, "max_batch": 8, **plan}, "model": "set"}
    return measured(day, rate, p99_ms, 99.0, 0.4, **more)


def set_of(results: Path, *runs: Any) -> list[Article]:
    """Returns the page of Pareto about these runs."""
    for number, run in enumerate(runs):
        database.add(results, f"set-{number}", run)
    return pareto(rows(results, model="set"), reports_in(results, results / "page.html"))


def test_the_front_holds_valid_runs_of_one_task_and_machine(results: Path) -> None:
    articles = pareto(rows(results), reports_in(results, results / "page.html"))
    alpha = articles[1]
    assert "4 VALID runs of 4 configurations on alpha: 2 on the front, 1 undecided" in text(alpha)
    assert alpha.head[0].endswith("small on digits · server · ort · 1,000 queries/s</h1></div>")
    assert len(articles) == 3
    overview = cells(articles[0], "small on digits")
    assert overview[1:] == ["4", "4", "digits · best, small", "digits · again"]
    assert "1 task with a single configuration" in text(articles[0])
    assert "bad" not in text(alpha)
    front = fronts(alpha)
    # The name of a run whose settings are unknown ends with its folder, if other settings do not distinguish it.
    assert set(front) == {"small", "digits · best", "digits · again", html.escape(HOSTILE)}
    # Its accuracy is lower, and no number is better.
    assert front[html.escape(HOSTILE)].startswith("beaten by ")
    assert len(alpha.figures) == 3
    plot = figure(alpha, "joules per sample rapl:psys against p99")
    symbols = {t["name"]: t["marker"]["symbol"] for t in plot.data if "marker" in t}
    assert symbols["small"] == "circle"
    front_line = plot.data[-1]
    assert list(zip(front_line["x"], front_line["y"], strict=True)) == [(5, 0.4), (9, 0.1)]
    assert plot.layout["xaxis"]["title"] == "p99 (lower is better), ms"


def test_repeats_of_a_configuration_are_one_row_with_median_and_range(results: Path) -> None:
    runs = [configured(day, rate, 5) for day, rate in ((10, 1000), (11, 1020), (12, 1010))]
    (page,) = set_of(results, *runs, configured(13, 2000, 5, threads=2))
    assert "4 VALID runs of 2 configurations on alpha" in text(page)
    # A name has only what differs.
    assert fronts(page) == {"threads 2": "on the front", "threads 1": "beaten by A"}
    once = cells(page, "threads 1")
    assert once[2].startswith("3 runs")
    assert once[3] == "1,010 samples/s1,000 to 1,020 samples/s"
    assert '<data value="1010.0">1,010 samples/s</data>' in text(page)
    assert 'class="cards sortable"' in text(page)
    plot = figure(page, "Throughput of each configuration")
    two, one = plot.data
    assert (one["x"], one["error_x"]["array"], one["error_x"]["arrayminus"]) == ([1010], [10], [10])
    assert two["error_x"]["visible"] is False
    assert plot.layout["xaxis"]["title"] == "throughput (higher is better), samples/s"
    assert plot.layout["yaxis"]["dtick"] == 1  # Bug: of seven names, four were shown.


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("2026-11-30T01-02-03Z-server-ort-digits", "2026-11-30 01:02:09"),
        ("2026-11-30T01-02-03Z-peak-ort/probes/03", "2026-11-30 01:02:09 probes/03"),
        ("night/run-1", "night/run-1"),
    ],
)
def test_a_name_has_the_start_or_what_the_user_chose(folder: str, name: str) -> None:
    """Bug: on a phone, the path of a study's run pushed the verdict out of the table."""
    assert named({"folder": folder, "started": "2026-11-30T01:02:09+00:00"}) == name


def test_a_single_configuration_has_no_plot(results: Path) -> None:
    """Bug: the axis of a single configuration made its noise look large."""
    (page,) = set_of(results, *(configured(day, 1000 + day, 5) for day in (10, 11)))
    assert not page.figures


@pytest.mark.parametrize(("rate", "undecided"), [(1050, 1), (1200, 0)])
def test_advantage_within_the_spread_of_repeats_is_a_tie(
    results: Path, rate: float, undecided: int
) -> None:
    spread = [configured(day, 960 + 20 * day, 5) for day in range(5)]
    (page,) = set_of(results, *spread, configured(9, rate, 5, threads=2))
    states = list(fronts(page).values())
    # Bug: a slower configuration was on the front like the faster one.
    assert states.count("on the front") == 1
    assert states.count("undecided against A") == undecided
    assert states.count("beaten by A") == 1 - undecided
    assert "A difference counts above its 95 % interval" in text(page)


@pytest.mark.parametrize(("rate", "undecided"), [(1900, 1), (2100, 0)])
def test_without_repeats_only_a_factor_beyond_all_noise_counts(
    results: Path, rate: float, undecided: int
) -> None:
    (page,) = set_of(results, configured(9, 1000, 5), configured(10, rate, 5, threads=2))
    states = list(fronts(page).values())
    # Bug: a slower configuration was on the front like the faster one.
    assert states.count("on the front") == 1
    assert states.count("undecided against A") == undecided
    assert states.count("beaten by A") == 1 - undecided
    assert "a gain counts only above a factor of 2 (rates), 10 (p99) or 4" in text(page)


@pytest.mark.parametrize(("count", "has_legend"), [(12, True), (13, False)])
def test_plot_of_many_configurations_has_no_legend(
    results: Path, count: int, has_legend: bool
) -> None:
    runs = [
        measured(9, 1, n + 1, 99.0, n + 1, model="set", plan={"threads": n}) for n in range(count)
    ]
    (page,) = set_of(results, *runs)
    (plot,) = page.figures
    assert plot.layout["showlegend"] is has_legend


def test_load_of_a_page_has_the_exact_rates_of_its_runs(results: Path) -> None:
    for day, rate in ((20, 1204.0), (21, 1239.0)):
        run = measured(day, 1000, 5, 99.0, 0.4, model="rates")
        run["throughput_per_s"]["asked"] = rate
        database.add(results, f"rates-{day}", run)
    for draw in (pareto, history):
        (page,) = draw(rows(results, model="rates"), reports_in(results, results / "page.html"))
        assert "1,204 to 1,239 queries/s</h1>" in text(page)


def test_models_on_noise_have_no_task_in_common(results: Path) -> None:
    for name in ("a", "b"):
        database.add(results, name, measured(9, 1, 1, 1, 1, model=name, dataset="synthetic"))
    found = pareto(rows(results, since="2026-01-08"), reports_in(results, results / "page.html"))
    # Bug: the page was empty, except for a folded list.
    assert "<details><summary>2 tasks with a single configuration" in text(found[0])
    assert "VALID</span>" not in text(found[0])  # only VALID runs are compared


def test_one_run_that_beats_all_others_is_named_and_drawn(results: Path) -> None:
    for day in (1, 9):
        database.add(results, f"near-{day}", measured(day, 1, day, 99.0, day, model="near"))
    (found,) = pareto(rows(results, model="near"), reports_in(results, results / "page.html"))
    assert ": one configuration beats the others." in text(found)
    # Bug: a front of one run had no plot.
    assert [one.title for one in found.figures] == ["joules per sample rapl:psys against p99"]


def test_an_axis_of_close_numbers_has_a_least_span(results: Path) -> None:
    """Bug: five ticks of an axis were all 226.8 ms, because its ends differed by microseconds."""
    for day, p99_ms in ((20, 226.80), (21, 226.81)):
        database.add(results, f"near-{day}", measured(day, 1, p99_ms, 99.0, 41 - day, model="near"))
    found = pareto(rows(results, model="near"), reports_in(results, results / "page.html"))
    (only,) = found[0].figures
    assert "filled mark" in text(found[0])
    assert only.title == "joules per sample rapl:psys against p99"
    low, high = only.layout["xaxis"]["range"]
    assert high - low == pytest.approx(0.02 * 226.805)
    assert "range" not in only.layout["yaxis"]


def test_a_page_is_written_and_escaped(results: Path, tmp_path: Path, prints: Said) -> None:
    pytest.importorskip("plotly")
    words = ["runs", "--results", str(results), "--history", str(tmp_path / "h.html")]
    printed = prints(*words, "--pareto", tmp_path / "p.html", "--model", "*")
    assert printed == f"{tmp_path}/h.html\n{tmp_path}/p.html\n"
    assert len(list(tmp_path.glob("plotly-*.min.js"))) == 1
    for name in ("h.html", "p.html"):
        page = (tmp_path / name).read_text()
        assert HOSTILE not in page
        assert '<script src="plotly-' in page


@pytest.mark.parametrize(
    ("words", "status", "line"),
    [
        (["--standalone"], 2, "--standalone needs a page: add --history PAGE or --pareto PAGE"),
        (["--history", "h.html", "--format", "csv"], 2, "--format csv prints the runs, but a page draws them: drop one"),
        (["--history", "h.html", "--pareto", "./h.html"], 2, "h.html is named for two pages: name a different file for one"),
        (["--history", "none/h.html"], 2, "none/h.html cannot be written: No such file or directory"),
        (["--pareto", "p.html", "--verdict", "invalid"], 0, "--pareto p.html: none of these runs is VALID, so there is nothing to draw"),
        (["--history", "h.html", "--model", "none"], 0, "no such run in {results}: `runs` without a filter lists all"),
    ],
)  # fmt: skip
def test_page_that_cannot_be_drawn_is_reported_in_one_line(
    results: Path,
    monkeypatch: pytest.MonkeyPatch,
    refuses: Said,
    words: list[str],
    status: int,
    line: str,
) -> None:
    pytest.importorskip("plotly")
    monkeypatch.chdir(results)
    told = refuses("runs", "--results", results, *words, status=status)
    assert told == line.format(results=results)
    assert not list(results.glob("*.html"))


@pytest.mark.slow
@needs_chromium()
def test_a_browser_draws_every_plot(results: Path, tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    # Beside other workloads, three runs would have no plots.
    one = ("--scenario", "server", "--model", "digits", "--host", "alpha")
    for name, chosen, plots in (("history", one, 3), ("pareto", (), 4)):
        page = tmp_path / f"{name}.html"
        assert main(["runs", "--results", str(results), *chosen, f"--{name}", str(page)]) == 0
        found = shown(page)
        assert (found.console, found.drawn) == ([], plots)


def test_a_page_never_replaces_a_device(results: Path, tmp_path: Path) -> None:
    """Bug: as root, `--history /dev/full` turned the device into an ordinary file."""
    pytest.importorskip("plotly")
    device = tmp_path / "device"
    device.symlink_to("/dev/null")
    assert main(["runs", "--results", str(results), "--history", str(device)]) == 0
    assert device.is_symlink()
