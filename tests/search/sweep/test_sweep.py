"""`sweep`: relative or absolute rates, resumption, the knee, the table and the page."""

import csv
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.browse import studies
from harness.browse.index import Entry
from harness.cli.main import main
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError, PluginUnavailable
from harness.models.manifest.model import MODELS_DIR
from harness.results.outcome import Finished
from harness.results.pages.page import Figure
from harness.results.recheck import check
from harness.results.run_folder import is_in_progress, locked
from harness.results.seal import digests
from harness.results.seal.digests import SEAL
from harness.search.options import Rates, parse_caches, parse_rates
from harness.search.sweep.content import Point
from harness.search.sweep.page import articles, figures
from harness.search.sweep.table import knee, marks, points_table
from harness.search.token_times import FIELDS, times_of
from tests.builders.refusals import Said
from tests.stand_ins.fake_peak import System, names

SERVER = ("sweep", "--scenario", "server", "--backend", "null", "--slo", "p99=10ms", "--quiet")

Swept = Callable[..., tuple[int, System]]


@pytest.fixture
def swept(monkeypatch: pytest.MonkeyPatch) -> Swept:
    def run(system: System, *arguments: str) -> tuple[int, System]:
        monkeypatch.setattr("harness.run.supervisor.job.measure", system)
        return main([*arguments, "--out", "swept"]), system

    return run


def sweep_json() -> Any:
    return json.loads(Path("swept/sweep.json").read_text())


@pytest.mark.parametrize(
    ("text", "rates"),
    [
        ("10%..110%", Rates((0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1), True)),
        ("100..200/3", Rates((100.0, 150.0, 200.0), False)),
        ("1,000..2,000/2", Rates((1000.0, 2000.0), False)),
        ("90%,50%,50%", Rates((0.5, 0.9), True)),
        ("0.5..1.5/2", Rates((0.5, 1.5), False)),
        ("300", Rates((300.0,), False)),
    ],
)
def test_rates_are_parsed(text: str, rates: Rates) -> None:
    assert parse_rates(text) == rates


@pytest.mark.parametrize(
    "text",
    ["", "fast", "10%..200", "200..100", "10..20/1", "0%..10%", "5,9%", "1e400%", "..", "nan%"],
)
def test_invalid_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_rates(text)


def test_sweep_without_a_valid_point_ends_with_status_4(swept: Swept) -> None:
    status, _ = swept(System(50.0), *SERVER, "--rate", "100..300/3")
    assert [p["verdict"] for p in sweep_json()["points"]] == ["INVALID"] * 3
    assert status == 4


@pytest.mark.parametrize(
    ("verb", "head"),
    [
        (("sweep", "--rate", "100"), "SWEEP  server  null  mine  p99=10ms\n"),
        (("peak",), "PEAK  server  null  mine  p99=10ms\n"),
        (("--target-qps", "100", "--repeats", "2"), "2 of 2 VALID  server  null  mine\n"),
    ],
    ids=["sweep", "peak", "repeats"],
)
def test_titles_have_the_models_name_as_in_a_run(
    verb: tuple[str, ...], head: str, swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the titles contained the path given to --model."""
    digits = (MODELS_DIR / "digits.yaml").read_text()
    Path("sub").mkdir()
    Path("sub/m.yaml").write_text(digits.replace("name: digits", "name: mine"))
    options = ("--scenario", "server", "--backend", "null", "--slo", "p99=10ms", "--quiet")
    assert swept(System(900.0), *verb, *options, "--model", "sub/m.yaml")[0] == 0
    assert capsys.readouterr().out.startswith(head)
    if verb[0] == "sweep":
        title = '<h1><span class="badge valid">VALID</span> Sweep · mine · server · null · p99=10ms</h1>'
        text = Path("swept/sweep.html").read_text()
        assert re.findall("<h1>.*</h1>", text) == [title]


def test_absolute_rates_need_no_peak(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    """Bug: the table showed INVALID without the reason."""
    status, system = swept(System(250.0), *SERVER, "--rate", "100..300/3")
    assert status == 0
    assert [c.target_qps for c in system.configs] == [100, 200, 300]
    content = sweep_json()
    assert (content["peak"], content["highest_valid"]) == (None, 200)
    assert [p["verdict"] for p in content["points"]] == ["VALID", "VALID", "INVALID"]
    with Path("swept/sweep.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {*rows[0], "token_times"} == {*Point.__annotations__, *FIELDS}
    assert [row["rate_per_s"] for row in rows] == ["100.0", "200.0", "300.0"]
    assert rows[2]["reasons"] == "slo-missed"
    assert rows[0]["share"] == ""
    out = capsys.readouterr().out
    assert out.startswith("SWEEP  server  null  digits  p99=10ms\n")
    assert re.search(r"^ +300 +300 .* INVALID slo-missed$", out, re.MULTILINE)
    assert "\nknee        none: it needs 3 VALID points, but there are 2\n" in out


def test_percentages_are_of_the_peak_that_is_given(swept: Swept) -> None:
    _, system = swept(System(900.0), *SERVER, "--rate", "50%,100%", "--peak", "1000")
    assert [c.target_qps for c in system.configs] == [500, 1000]
    assert [p["share"] for p in sweep_json()["points"]] == [0.5, 1.0]


def test_a_given_peak_is_also_a_scale_next_to_rates(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: --rate 100,200 --peak 400 was refused, and a given rate was called the peak."""
    status, system = swept(System(900.0), *SERVER, "--rate", "100,200", "--peak", "400")
    assert (status, [c.target_qps for c in system.configs]) == (0, [100, 200])
    assert [p["share"] for p in sweep_json()["points"]] == [0.25, 0.5]
    out = capsys.readouterr().out
    assert re.search(r"^ +100 +25 % +100 ", out, re.MULTILINE)
    assert "\n100 %       400 queries/s: the rate given with --peak\n" in out
    assert "peak  " not in out


def test_a_given_peak_that_was_not_reached_is_named(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the run at 100 % was INVALID, but no line said so."""
    swept(System(900.0), *SERVER, "--rate", "50%,80%,100%", "--peak", "1000")
    told = (
        "1,000 queries/s: the rate given with --peak, which was not reached: VALID up to 80 % of it"
    )
    assert f"\n100 %       {told}\n" in capsys.readouterr().out
    content = sweep_json()
    assert told in "".join(articles(content)[0].head)
    above = {**content["points"][0], "rate_per_s": 1000.0}
    reached = content | {"points": [above], "highest_valid": 1000.0}
    assert not any("not reached" in line for line in marks(reached))


def test_a_measured_peak_is_reported_as_measured_every_time(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    told = re.compile(
        r"^peak +1,\d+ queries/s: the highest rate that the search before the sweep found VALID",
        re.MULTILINE,
    )
    for _ in range(2):
        swept(System(1300.0), *SERVER, "--rate", "50%,100%")
        assert told.search(capsys.readouterr().out)
    main(["sweep", "--from", "swept"])
    assert told.search(capsys.readouterr().out)


def test_missing_peak_is_searched_once(swept: Swept) -> None:
    _, system = swept(System(1300.0), *SERVER, "--rate", "50%,100%")
    peak = json.loads(Path("swept/peak/peak.json").read_text())["peak"]
    assert sweep_json()["peak"] == peak
    assert [c.target_qps for c in system.configs[-2:]] == pytest.approx([peak / 2, peak], rel=1e-5)
    again, system = swept(System(1300.0), *SERVER, "--rate", "50%,75%,100%")
    assert again == 0
    (config,) = system.configs  # two of the three points exist already, so only one run is made
    assert config.target_qps == pytest.approx(0.75 * peak, rel=1e-5)
    assert len(sweep_json()["points"]) == 3


def test_unsustained_peak_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    system = System(1300.0)

    def measure(config: RunConfig, **how: Any) -> Finished:
        finished = system(config, **how)
        finished.result["throughput_per_s"]["completed"] = 500.0
        return finished

    monkeypatch.setattr("harness.run.supervisor.job.measure", measure)
    main([*SERVER, "--rate", "10%,20%", "--out", "swept"])
    assert re.search(
        r"harness: swept/peak: 500 of 1,\d+ offered queries/s", capsys.readouterr().err
    )


def test_stopped_sweep_resumes(swept: Swept, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*SERVER, "--rate", "100..400/4")
    status, system = swept(System(900.0, {3: ("interrupted", 130)}), *arguments)
    assert (status, len(system.configs)) == (130, 3)
    told = "harness: stopped: the same command with --out swept continues it\n"
    shown = capsys.readouterr()
    assert shown.err == told
    # Bug: "every requested rate was VALID".
    so_far = "valid       200 queries/s: every rate so far was VALID; 2 rates not measured\n"
    assert so_far in shown.out
    assert main(["sweep", "--from", "swept"]) == 0
    assert so_far in capsys.readouterr().out
    assert [p["rate_per_s"] for p in sweep_json()["points"]] == [100, 200]
    status, system = swept(System(900.0), *arguments)
    assert (status, [c.target_qps for c in system.configs]) == (0, [300, 400])
    assert [p["rate_per_s"] for p in sweep_json()["points"]] == [100, 200, 300, 400]
    assert names(Path("swept/points")) == ["100", "200", "300-2", "300.partial", "400"]


def test_a_folder_in_use_cannot_be_continued(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two processes would write the same file, and `browse` would take the sweep for one that has ended."""
    arguments = (*SERVER, "--rate", "100..400/4")
    assert swept(System(900.0, {3: ("interrupted", 130)}), *arguments)[0] == 130
    assert not is_in_progress(Path("swept"))
    unlock = locked(swept, Path("swept"))
    assert swept(System(900.0), *arguments)[0] == 2
    assert "swept: another process still adds runs to this folder: wait" in capsys.readouterr().err
    unlock()
    assert swept(System(900.0), *arguments)[0] == 0


def test_a_sweep_is_in_progress_until_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: `browse` showed a sweep in progress as one that had ended."""
    system, seen = System(900.0), []

    def measure(config: RunConfig, **how: Any) -> Finished:
        seen.append((is_in_progress(Path("swept")), Path("swept/progress.json").is_file()))
        return system(config, **how)

    monkeypatch.setattr("harness.run.supervisor.job.measure", measure)
    assert main([*SERVER, "--rate", "100,200", "--out", "swept"]) == 0
    assert seen == [(True, True)] * 2
    assert (is_in_progress(Path("swept")), Path("swept/progress.json").exists()) == (False, False)


@pytest.mark.parametrize(
    ("end", "status"),
    [
        (("interrupted", 130), 130),
        (("batch-failed", 4), 4),
        (("died", 5), 5),
        (ConfigError("it is too large"), 2),
    ],
)
def test_sweep_resumes_after_a_peak_search_that_ended_early(
    swept: Swept,
    end: tuple[str, int] | ConfigError,
    status: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = (*SERVER, "--rate", "50%,100%")
    assert swept(System(1300.0, {3: end}), *arguments)[0] == status
    assert names(Path("swept")) == [SEAL, "peak.partial", "sweep.csv", "sweep.json"]
    told = "harness: stopped: the same command with --out swept continues it\n"
    assert (told == capsys.readouterr().err) == (status == 130)
    assert main(["sweep", "--from", "swept"]) == 0
    assert swept(System(1300.0), *arguments)[0] == 0
    peak = json.loads(Path("swept/peak-2/peak.json").read_text())["peak"]
    content = sweep_json()
    assert content["peak"] == peak
    assert [p["share"] for p in content["points"]] == pytest.approx([0.5, 1], rel=1e-5)
    status, system = swept(System(1300.0), *arguments)
    assert (status, system.configs) == (0, [])


def test_resumed_sweep_lists_the_changes_and_is_sealed_again(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the files of a sweep had no seal, so an edited table was not noticed."""
    swept(System(900.0), *SERVER, "--rate", "100,200")
    assert list(digests.differences(Path("swept"))) == []
    main(["sweep", "--from", "swept"])
    assert list(digests.differences(Path("swept"))) == []
    Path("swept/sweep.csv").write_text("")
    capsys.readouterr()
    swept(System(900.0), *SERVER, "--rate", "100,200,300")
    assert capsys.readouterr().err == (
        "harness: swept/sweep.csv was changed after the run: its SHA-256 differs from SHA256SUMS\n"
    )
    assert list(digests.differences(Path("swept"))) == []


def test_a_run_that_fails_for_another_reason_ends_it(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    assert swept(System(900.0, {2: ("batch-failed", 4)}), *SERVER, "--rate", "100..300/3")[0] == 4
    assert len(sweep_json()["points"]) == 1
    assert "the sweep ends here: batch-failed: batch-failed it is" in capsys.readouterr().err


def test_client_bound_run_is_repeated_once_and_the_sweep_continues(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: one client-bound run ended the sweep; the table had no row for this run, and the other rates were not
    measured.
    """
    bound = {1: ("client-bound", 4), 2: ("client-bound", 4), 4: ("client-bound", 4)}
    arguments = (*SERVER, "--rate", "100..300/3")
    status, system = swept(System(900.0, bound, final=["client-bound"]), *arguments)
    assert (status, [c.target_qps for c in system.configs]) == (0, [100, 100, 200, 300, 300])
    points = sweep_json()["points"]
    assert [(p["rate_per_s"], p["verdict"]) for p in points] == [
        *((100, "INVALID"), (200, "VALID"), (300, "VALID")),
    ]
    out = capsys.readouterr().out
    assert re.search(r"^ +100 .* INVALID client-bound$", out, re.MULTILINE)
    assert "\nnot usable  the client was the limit at 100 queries/s (client-bound): " in out
    status, system = swept(System(900.0), *arguments)
    assert (status, [c.target_qps for c in system.configs]) == (0, [100])
    assert [p["verdict"] for p in sweep_json()["points"]] == ["VALID"] * 3


def test_client_bound_at_two_rates_in_a_row_ends_only_its_state(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    bound = dict.fromkeys((1, 2, 4, 5), ("client-bound", 4))
    data = ("--dataset", "synthetic-prompts", "--dataset-option", "tokens=5:15")
    system = System(900.0, bound, final=["client-bound"])
    words = (*REMOTE, *data, "--rate", "100..400/4", "--cache", "0%,50%")
    assert swept(system, *words)[0] == 0
    made = [(c.target_qps, dict(c.dataset_option)["prefix"]) for c in system.configs]
    zero, half = [(100, "0"), (200, "0")], [(rate, "0.5") for rate in (100, 200, 300, 400)]
    assert made == [zero[0], zero[0], half[0], zero[1], zero[1], *half[1:]]
    assert len({dict(c.dataset_option)["draw"] for c in system.configs}) == len(system.configs)
    said = "the client was the limit at 2 rates in a row: no higher rate with the state 0% is tried"
    assert said in capsys.readouterr().err
    page = Path("swept/sweep.html").read_text().replace("\xa0", " ")
    told = "400 queries/s (50% cache): every requested rate was VALID"
    # Bug: the headline did not say which state it described.
    assert f'<p class="headline">{told}</p>' in page
    assert '<p class="lead">The verb peak finds the highest</p>' in page


def test_sweep_whose_points_are_all_client_bound_ends_with_status_4(swept: Swept) -> None:
    system = System(900.0, dict.fromkeys(range(1, 9), ("client-bound", 4)), final=["client-bound"])
    assert swept(system, *SERVER, "--rate", "100..300/3")[0] == 4
    assert [c.target_qps for c in system.configs] == [100, 100, 200, 200]


def test_a_users_mistake_leaves_nothing(swept: Swept) -> None:
    for first in ("100..300/3", "50%,100%"):
        system = System(900.0, {1: ConfigError("it is too large")})
        assert swept(system, *SERVER, "--rate", first)[0] == 2
        assert names(Path()) == []


def test_another_configuration_needs_another_folder(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    swept(System(900.0), *SERVER, "--rate", "100,200")
    assert swept(System(900.0), *SERVER, "--rate", "100", "--max-batch", "4")[0] == 2
    told = "harness: swept is a sweep with a different max_batch: pass a different --out\n"
    assert capsys.readouterr().err.endswith(told)
    Path("other").mkdir()
    assert main([*SERVER, "--rate", "100", "--out", "other"]) == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("--scenario offline", "sweep is for --scenario server: offline has no rate to offer"),
        ("--scenario server --target-qps 5", "--target-qps sets a single rate: sweep takes --rate, e.g. --rate 100..2000"),
        ("--scenario server --mlperf", "sweep makes quick runs: drop --mlperf"),
        ("--scenario server --mode accuracy", "sweep needs performance runs: drop --mode accuracy"),
        ("--scenario server --audit a.config", "--audit makes one run, but sweep makes several: drop it"),
        ("--scenario server --metrics-linger 1s", "--metrics-linger waits after one run, but sweep makes several: drop it"),
        ("--scenario server --rate 10..20 --queries 5", "--queries 5: p99 needs at least 459 queries: drop --queries, or pass more"),
        ("--scenario server --rate 20..10", "--rate: '20..10': write it in ascending order, with at least two points"),
    ],
)  # fmt: skip
def test_a_mistake_is_reported_in_one_line_and_status_2(
    arguments: str, line: str, refuses: Said
) -> None:
    assert refuses("sweep", *arguments.split()) == line
    assert names(Path()) == []


def point(rate: float, mean_ms: float, achieved: float | None = None) -> Any:
    times = dict.fromkeys(("p50_ns", "p90_ns", "p99_ns", "mean_ns"), mean_ms * 1e6)
    rates = {"rate_per_s": rate, "scheduled_per_s": rate, "completed_per_s": achieved or rate}
    texts = {"verdict": "VALID", "reasons": (), "doubts": (), "folder": ""}
    known = {"share": None, "mean_batch": 1.0, "busy_share": 0.5, "model_per_s": None}
    return {**rates, **times, **texts, **known, "queries": 1, "late": 0}


def swept_to(points: Sequence[Mapping[str, Any]], **known: Any) -> Any:
    """Returns the parts of sweep.json that the table and the plots read."""
    none = {"slo": None, "peak": None, "peak_is_measured": False, "knee": None}
    return {"points": list(points), **none, **known}


def test_a_knee_at_the_highest_rate_is_not_a_knee() -> None:
    """Bug: the last of four rates was the knee of a curve whose latency still fell."""
    points = [point(rate, mean) for rate, mean in ((100, 3), (200, 2), (300, 1))]
    assert knee(points) is None
    told = (
        "knee        none: the ratio of throughput to mean latency still grows at the highest rate"
    )
    assert told in list(marks(swept_to(points, highest_valid=300)))
    missed = point(400, 9) | {"verdict": "INVALID"}
    assert knee([*points, missed]) == 300


def test_runs_longer_than_the_duration_are_announced(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: a sweep at 20 queries/s and --duration 4s took 33 s at its first rate, and no line had announced this."""
    told = "harness: p99 needs 662 queries, which take 6.6 s at 100 queries/s, longer than --duration (2 s)\n"
    words = [word for word in SERVER if word != "--quiet"]
    swept(System(900.0), *words, "--rate", "100,200", "--duration", "2s")
    assert told in capsys.readouterr().err
    Path("swept").rename("before")
    assert swept(System(900.0), *words, "--rate", "100,200", "--duration", "7s")[0] == 0
    assert "longer than --duration" not in capsys.readouterr().err


def test_knee_is_where_a_line_from_the_origin_touches_the_curve() -> None:
    """In an M/M/1 queue with a service rate of 1000/s, the mean time is 1/(1000 - rate), and rate x (1000 - rate) is
    largest at 500.
    """
    points = [point(rate, 1000 / (1000 - rate)) for rate in range(100, 1000, 100)]
    assert knee(points) == 500
    assert knee([*points, point(1100, 5000, 990)]) == 500
    assert knee(points[:2]) is None


def test_the_knee_is_of_valid_points_only() -> None:
    points = [point(rate, 1000 / (1000 - rate)) for rate in range(100, 1000, 100)]
    missed = [p | {"verdict": "INVALID"} if p["rate_per_s"] >= 400 else p for p in points]
    assert knee(missed) == 300
    assert knee(missed[1:]) is None


def _names(figure: Figure) -> list[str]:
    return [trace["name"] for trace in figure.data]


def test_plots_mark_the_knee_and_the_peak_and_leave_gaps() -> None:
    points = [point(100, 1), point(200, 2), point(300, 9, 250)]
    points[1]["p99_ns"] = None
    content = swept_to(points, slo="p99=10ms", highest_valid=200, knee=100)
    latency, achieved, instances = figures(content)
    curves, marks = ["p50", "p90", "p99"], ["knee, 100", "highest VALID, 200"]
    assert _names(latency) == [*curves, *marks]
    assert latency.data[2]["y"] == [1.0, None, 9.0]
    assert [s["x0"] for s in latency.layout["shapes"]] == [100, 200, 0]
    (latency, *_) = figures(content | {"peak": 250, "peak_is_measured": True})
    assert _names(latency) == [*curves, "knee, 100", "peak, 250"]
    # Bug: the plot used the word peak for a rate that only defines 100 %.
    (latency, *_) = figures(content | {"peak": 250})
    names = ["knee, 100", "100 %, 250", "highest VALID, 200"]
    assert _names(latency) == [*curves, *names]
    assert [s["x0"] for s in latency.layout["shapes"]] == [100, 250, 200, 0]
    assert _names(achieved) == ["achieved"]
    assert _names(instances) == ["batch size", "utilisation", *marks]
    # Bug: the vertical lines crossed the numbers of the axis below the last panel.
    lowest = min(axis["domain"][0] for axis in instances.layout.values() if "domain" in axis)
    assert [s["y0"] for s in instances.layout["shapes"]] == pytest.approx([lowest, lowest])
    json.dumps([latency, achieved, instances], allow_nan=False)
    assert list(figures(content | {"points": []})) == []


def test_plots_show_a_run_at_the_rate_that_names_it() -> None:
    """Bug: texts named a run by its requested rate, but the axis had the rate of LoadGen's schedule."""
    made = [point(rate, 1) | {"scheduled_per_s": rate * 1.1} for rate in (100, 200)]
    content = swept_to(made, highest_valid=200)
    for figure in figures(content):
        assert figure.layout["xaxis"]["title"] == "requested, queries/s"
        assert {x for trace in figure.data for x in trace["x"] if x is not None} == {100, 200}
    assert [shape["x0"] for shape in figure.layout["shapes"]] == [200]
    _, achieved, *_ = figures(content)
    assert achieved.data[0]["y"] == pytest.approx([100 / 1.1] * 2)


def test_the_achieved_rate_is_drawn_only_if_it_differs() -> None:
    def titles(achieved: float) -> list[str]:
        points = [point(100, 1), point(200, 2, achieved)]
        return [figure.title for figure in figures(swept_to(points, highest_valid=200))]

    assert "Achieved rate" not in titles(197)
    assert "Achieved rate" in titles(180)


def test_sweep_without_a_valid_rate_begins_with_that() -> None:
    """Bug: the headline of such a sweep was the reason why it has no knee."""
    missed = [point(rate, 9) | {"verdict": "INVALID"} for rate in (100, 200)]
    named = {"config": {"scenario": "server", "backend": "null"}, "model": "mine"}
    head = "".join(articles(swept_to(missed, highest_valid=None) | named)[0].head)
    assert (
        '<p class="headline">No rate: all 2 rates from 100 to 200 queries/s were INVALID</p>'
        in head
    )
    assert head.startswith('<h1><span class="badge invalid">INVALID</span> ')


def test_token_times_of_a_language_model_replace_the_batch() -> None:
    times = {"ttft_p50_ns": 2e6, "ttft_p99_ns": 9e6, "tpot_p50_ns": 3e5}
    streamed, failed = point(100, 1) | {"token_times": times}, point(200, 9)
    content = swept_to([streamed, failed], highest_valid=100)
    table = points_table(content)
    heads = [column.name for column in table.columns]
    # The table has no column `share`.
    assert heads[6:] == ["TTFT p50", "TTFT p99", "TPOT p50", "late", "verdict"]
    assert [row[6:10] for row in table.rows] == [(2e6, 9e6, 3e5, 0), (None, None, None, 0)]
    _, drawn, instances = figures(content)
    assert drawn.title == "Token times"
    shown = {trace["name"]: trace["y"] for trace in drawn.data}
    assert shown["TTFT p99"] == [9.0, None]
    assert [name for name in _names(instances) if "," not in name] == ["utilisation"]


def test_tokens_and_their_price_are_shown_at_each_rate() -> None:
    """Bug: users had to compute tokens/s and the price of each rate from the folders of the runs."""
    known = {"tokens_per_s": 640.0, "per_million": 0.54}
    points = [point(100, 1) | known, point(200, 9)]
    content = swept_to(points, highest_valid=200)
    table = points_table(content)
    assert [c.name for c in table.columns[-4:-2]] == ["tokens/s", "per million output tokens"]
    assert [row[-4:-2] for row in table.rows] == [(640.0, 0.54), (None, None)]
    *_, last = figures(content)
    panels = ["tokens", "batch size", "utilisation"]
    assert [name for name in _names(last) if "," not in name] == panels


def test_the_percentile_of_a_token_slo_is_shown_with_its_bound() -> None:
    """Bug: the SLO on p90 decided, but tables showed p50 and p99, and a page named a bound that the plot did not draw."""
    times = times_of({"tokens": {"ttft_ns": {"p50": 2e6, "p90": 5e6, "p99": 9e6}}})
    points = [p | {"token_times": times} for p in (point(100, 1), point(200, 2))]
    content = swept_to(points, slo="ttft:p90=200ms itl:p95=30ms", highest_valid=100)
    heads = [column.name for column in points_table(content).columns]
    assert {"TTFT p50", "TTFT p90"} < {*heads}
    assert "TTFT p99" not in heads
    latency, drawn, _ = figures(content)
    assert "dashed" not in latency.about
    assert "dashed" in drawn.about
    assert {"TTFT p90", "TPOT p99", "ITL p99"} < {trace["name"] for trace in drawn.data}
    bounds = [s for s in drawn.layout["shapes"] if s.get("label")]
    assert [s["y0"] for s in bounds] == [200, 30]
    assert bounds[0]["label"]["text"] == "TTFT limit 200 ms (p90)"
    # Bug: the bounds of two token times had one colour.
    assert [s["legendgroup"] for s in bounds] == ["TTFT p90", "ITL p99"]


def test_invalid_point_has_a_red_cross_at_its_p99_and_a_reason() -> None:
    """Bug: crosses in the colours of the curves lay below the bound, without an explanation."""
    valid, missed = point(100, 1), point(200, 9, 150) | {"verdict": "INVALID"}
    content = swept_to([valid, missed], highest_valid=100)
    latency, achieved, _ = figures(content)
    for figure, value in ((latency, 9.0), (achieved, achieved.data[0]["y"][1])):
        (cross,) = (trace for trace in figure.data if trace["name"] == "INVALID")
        assert (cross["x"], cross["y"]) == ([200], [value])
        assert figure.about.endswith("Red crosses: INVALID, left out of the knee.")
    early = missed | {"reasons": ("early-stopping",)}
    below = swept_to([valid, early], slo="p99=50ms", highest_valid=100)
    assert "too few queries to prove" in next(figures(below)).about


def test_missing_module_leaves_nothing_and_removes_no_point(swept: Swept) -> None:
    missing = System(900.0, {1: PluginUnavailable("no module")})
    assert swept(missing, *SERVER, "--rate", "100,200")[0] == 3
    assert names(Path()) == []
    swept(System(900.0), *SERVER, "--rate", "100,200")
    missing = System(900.0, {1: PluginUnavailable("no module")})
    assert swept(missing, *SERVER, "--rate", "100,200,300")[0] == 3
    assert names(Path("swept/points")) == ["100", "200"]


@pytest.mark.parametrize(
    ("rates", "told"),
    [
        ("1e9", "1e+09 queries/s give 10,000,000,000 queries in --duration"),
        ("5% --peak 0.01", "0.0005 is less than one query in ten minutes"),
        ("1000% --peak 1e9", "1e+10 must be more than 0 and at most 1e9"),
    ],
)
def test_rates_that_no_run_can_offer_are_refused_before_the_first(
    swept: Swept, rates: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status, system = swept(System(900.0), *SERVER, "--rate", *rates.split())
    assert (status, system.configs, names(Path())) == (2, [], [])
    assert capsys.readouterr().err.startswith(f"harness: --rate: {told}")


def test_doubts_appear_at_the_end_of_their_row(
    monkeypatch: pytest.MonkeyPatch, prints: Said
) -> None:
    system = System(900.0)

    def measure(config: RunConfig, **how: Any) -> Finished:
        finished = system(config, **how)
        if config.target_qps == 200:
            doubts = [{"code": code, "text": ""} for code in ("drift", "busy-machine")]
            changed = {**finished.result, "doubts": doubts}
            (finished.folder / "result.json").write_text(json.dumps(changed))
        return finished

    monkeypatch.setattr("harness.run.supervisor.job.measure", measure)
    first, second = prints(*SERVER, "--rate", "100,200", "--out", "swept").splitlines()[3:5]
    assert first.endswith("  VALID")
    assert second.endswith("  VALID  doubts: drift busy-machine")


def test_doubt_about_all_points_appears_once_below_the_table() -> None:
    """Bug: the same five codes at the end of every row made the table 150 columns wide."""
    points = [point(rate, 1) | {"doubts": ("generator-late",)} for rate in (100, 200)]
    points[1] = points[1] | {"doubts": ("generator-late", "drift")}
    content = swept_to(points, highest_valid=200)
    assert [row[-1] for row in points_table(content).rows] == ["VALID", "VALID  doubts: drift"]
    assert "doubt       generator-late in all 2 runs" in list(marks(content))


def test_invalid_rate_below_the_highest_valid_one_is_reported() -> None:
    """Bug: 1,833/s was INVALID, but the answer was 2,500/s, and no note said so."""
    points = [point(1000, 1.0), point(1833, 2.0), point(2500, 3.0)]
    content: Any = {"points": points, "peak": None, "knee": None, "slo": "p99=5ms"}
    assert not any(line.startswith("hole") for line in marks(content | {"highest_valid": 2500.0}))
    points[1] = {**points[1], "verdict": "INVALID"}
    found = list(marks(content | {"highest_valid": 2500.0}))
    told = "VALID again at 2,500 queries/s, although lower rates were INVALID (1,833 queries/s): measure them again before you quote the higher rate"
    assert found[-2:] == [
        "valid       1,000 queries/s: every rate up to it was VALID",
        f"hole        {told}",
    ]
    points[0] = {**points[0], "verdict": "INVALID"}
    found = list(marks(content | {"highest_valid": 2500.0}))
    assert "valid       no rate: every VALID rate has an INVALID rate below it" in found
    assert not any(line.startswith("hole") for line in marks(content | {"highest_valid": 1000.0}))


def test_a_sweep_without_an_answer_is_not_headed_valid() -> None:
    """Bug: a VALID run above INVALID ones put VALID beside `no rate`."""
    points = [point(1000, 1.0), point(2500, 3.0)]
    below = [{**points[0], "verdict": "INVALID"}, points[1]]
    named = {"config": {"scenario": "server", "backend": "null"}, "model": "mine"}

    def head(of: list[Any]) -> str:
        return str(articles(swept_to(of, highest_valid=2500) | named)[0].head[0])

    assert ">VALID</span>" in head(points)
    assert ">INVALID</span>" in head(below)


def test_page_is_made_if_plotly_is_installed(
    swept: Swept, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with monkeypatch.context() as patched:
        Path("script").write_text("")
        patched.setattr(
            "harness.results.pages.page.plotly_script", lambda: (Path("script"), "script.js")
        )
        swept(System(900.0), *SERVER, "--rate", "100..300/3")
    page = Path("swept/sweep.html").read_text()
    assert "Latency against requested rate" in page
    assert 'id="plot-1"' in page
    monkeypatch.setitem(sys.modules, "plotly", None)
    assert swept(System(900.0), *SERVER, "--rate", "100,200")[0] == 0
    assert (
        "no page was written: a page with plots needs the module 'plotly'"
        in capsys.readouterr().err
    )


@pytest.mark.parametrize(
    ("model_ns", "runs"), [(2e7, 1), (5e6, 2)], ids=["by the bare loops", "by two runs"]
)
def test_a_bound_below_the_fastest_answer_ends_the_sweep(
    model_ns: float, runs: int, swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: every rate was measured, although no answer can be in time at any rate."""
    late = dict.fromkeys(range(1, 9), 12_000_000)
    system = System(50.0, fastest_ns=late, model_ns=model_ns)
    assert swept(system, *SERVER, "--rate", "100..800/8")[0] == 4
    assert [config.target_qps for config in system.configs] == [100.0, 200.0][:runs]
    assert sweep_json()["fastest_ns"] == 12_000_000
    told = "no load meets p99=10ms, because the fastest answer took 12.0 ms and the bound is 10.0 ms: raise --slo"
    out = capsys.readouterr().out
    assert f"stopped     {told}\n" in out
    assert main(["sweep", "--from", "swept"]) == 0
    assert capsys.readouterr().out == out


def test_machine_is_named_if_it_was_the_limit() -> None:
    """Bug: a point missed the SLO because of other programs, and no line of the summary mentioned these programs."""
    calm = point(100, 1) | {"doubts": ("few-samples",)}
    busy = point(200, 0.8) | {
        "verdict": "INVALID",
        "reasons": ("slo-missed",),
        "doubts": ("busy-machine", "drift"),
        "busy_share": 0.1,
        "model_per_s": 900.0,
    }
    content: Any = {"peak": None, "highest_valid": 100, "knee": None, "slo": "p99=10ms"}
    lines = list(marks(content | {"points": [calm, busy]}))
    machine, limit = lines[-2:]
    assert machine == (
        "machine     not at rest in 1 of 2 runs (busy-machine): stop other programs and sweep again"
    )
    assert limit == (
        "limit       delays of the machine, not the model, made 200 queries/s miss p99=10ms: the "
        "instances computed for 10 % of the time, and the model alone could answer about 900 queries/s"
    )
    working = busy | {"busy_share": 0.9, "doubts": ()}
    lines = list(marks(content | {"points": [calm, working]}))
    assert not any(line.startswith(("machine", "limit")) for line in lines)


def test_each_point_prints_its_outcome_and_the_time_left(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the line was `rate 2 of 6: 150 queries/s`, without result or time left."""
    swept(System(150.0), *SERVER[:-1], "--rate", "100,200", "--duration", "30s")
    first, second = capsys.readouterr().err.splitlines()[:2]
    assert first == "harness: rate 1 of 2, 100 queries/s: VALID, p99 10.0 ms; about 30 s left"
    assert second == "harness: rate 2 of 2, 200 queries/s: INVALID slo-missed, p99 5.00 ms"


@pytest.mark.slow
def test_a_real_sweep_shows_latency_growing_with_load(tmp_path: Path) -> None:
    sleeper = Path(__file__).parents[3] / "benchmarks/sleeper.py"
    backend = f"--scenario server --backend {sleeper}:Sleeper --max-batch 1 --instances 2"
    rates = "--rate 25%,60%,130% --peak 400 --slo p99=100ms --duration 3s --out swept"
    assert main(["sweep", *backend.split(), *rates.split()]) == 0
    points = sweep_json()["points"]
    times = [p["p99_ns"] for p in points]
    # Below the capacity, a busy machine decides which time is longer.
    assert times[-1] > 5 * max(times[:-1])
    assert [p["verdict"] for p in points] == ["VALID", "VALID", "INVALID"]
    for one in points:
        assert check(tmp_path / "swept" / one["folder"]) == []


def test_the_table_again_from_stored_files_alone(
    swept: Swept,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    prints: Said,
    refuses: Said,
) -> None:
    swept(System(250.0), *SERVER, "--rate", "100..300/3")
    first = capsys.readouterr().out
    monkeypatch.setattr("harness.run.supervisor.job.measure", None)
    assert prints("sweep", "--from", "swept") == first
    (point,) = Path("swept/points").glob("200/result.json")
    broken = {
        "{}": "no entry 'reasons'",
        '{"reasons": 3}': "TypeError: 'int' object is not iterable",
        '{"reasons": [], "queries": {"late": 1}}': "no entry 'throughput_per_s'",
    }
    for content, error in broken.items():
        point.write_text(content)
        message = f"{point} is not a valid result of a run: {error}: run `check` for details"
        assert refuses("sweep", "--from", "swept") == message
    Path("swept/sweep.json").write_text("{}")
    assert refuses("sweep", "--from", "swept") == "swept/sweep.json was not written by `sweep`"


@pytest.mark.parametrize(
    ("text", "caches"),
    [
        ("cold,warm", ("cold", "warm")),
        ("warm, cold", ("cold", "warm")),
        ("cold", ("cold",)),
        ("90%,0%,50%,50.0%", ("0%", "50%", "90%")),
        ("12.5%,warm,cold", ("cold", "warm", "12.5%")),
    ],
)
def test_states_of_the_cache_are_parsed(text: str, caches: tuple[str, ...]) -> None:
    assert parse_caches(text) == caches


@pytest.mark.parametrize("text", ["", "warm", "hot", "50", "100%", "-1%", "nan%", "cold,x%"])
def test_invalid_states_of_the_cache_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"warm"):
        parse_caches(text)


REMOTE = (
    *("sweep", "--scenario", "server", "--backend", "openai", "--url", "http://127.0.0.1:9"),
    *("--model", "tinylm", "--slo", "p99=10ms", "--quiet"),
)


def test_a_warm_run_repeats_the_cold_one_with_the_same_prompts(
    swept: Swept, capsys: pytest.CaptureFixture[str]
) -> None:
    status, system = swept(System(250.0), *REMOTE, "--rate", "100..300/3", "--cache", "cold,warm")
    assert status == 0
    assert [c.target_qps for c in system.configs] == [100, 100, 200, 200, 300, 300]
    fresh = [dict(c.backend_option)["fresh"] for c in system.configs]
    assert fresh[::2] == fresh[1::2]
    assert len({*fresh}) == 3
    content = sweep_json()
    assert [p["cache"] for p in content["points"]] == ["cold", "warm"] * 3
    each = {"knee": None, "highest_valid": 200}
    assert content["by_cache"] == {"cold": each, "warm": each}
    assert content["highest_valid"] == 200
    listed = studies.summary(Path(), Entry("swept", "", study="sweep"))[1]
    assert listed == "3 rates, each in 2 states of the cache, highest VALID 200 queries/s"
    out = capsys.readouterr().out
    assert re.search(r"^ +200 +warm +200 ", out, re.MULTILINE)
    assert "\ncache       warm\nknee        none" in out
    assert "Latency by the state of the server" in Path("swept/sweep.html").read_text()
    assert main(["sweep", "--from", "swept"]) == 0
    assert "\ncache       warm\nknee        none" in capsys.readouterr().out


def test_only_the_cold_run_empties_the_cache(swept: Swept) -> None:
    words = ("--rate", "100", "--cache", "cold,warm", "--before-run", "vllm")
    _, system = swept(System(250.0), *REMOTE, *words)
    assert [c.before_run for c in system.configs] == ["vllm", None]
    assert not any("fresh" in dict(c.backend_option) for c in system.configs)


def test_shares_of_the_cache_are_prompts_with_a_common_begin(swept: Swept) -> None:
    data = ("--dataset", "synthetic-prompts", "--dataset-option", "tokens=5:15")
    _, system = swept(System(250.0), *REMOTE, *data, "--rate", "100,200", "--cache", "0%,50%")
    prefixes = [dict(c.dataset_option)["prefix"] for c in system.configs]
    assert prefixes == ["0", "0.5", "0", "0.5"]
    assert len({dict(c.dataset_option)["draw"] for c in system.configs}) == 4
    assert not any("fresh" in dict(c.backend_option) for c in system.configs)
    assert [p["cache"] for p in sweep_json()["points"]] == ["0%", "50%"] * 2


def test_a_sweep_that_stopped_between_cold_and_warm_measures_both_again(swept: Swept) -> None:
    """The cache of the cold run may be gone, so a warm run alone would not be warm."""
    words = (*REMOTE, "--rate", "100,200", "--cache", "cold,warm")
    swept(System(250.0, {4: ("interrupted", 130)}), *words)
    assert [p["rate_per_s"] for p in sweep_json()["points"]] == [100, 100, 200]
    _, system = swept(System(250.0), *words)
    assert [c.target_qps for c in system.configs] == [200, 200]
    points = sweep_json()["points"]
    assert [(p["rate_per_s"], p["cache"]) for p in points] == [
        *((100, "cold"), (100, "warm"), (200, "cold"), (200, "warm")),
    ]
    assert points[2]["folder"] != "points/cold-200"


def test_resumed_sweep_measures_only_the_missing_states_of_a_rate(swept: Swept) -> None:
    """Bug: all states of a rate were measured again if one was missing, and a VALID row changed."""
    data = ("--dataset", "synthetic-prompts", "--dataset-option", "tokens=5:15")
    words = (*REMOTE, *data, "--rate", "100,200", "--cache", "cold,warm,0%,50%")
    swept(System(250.0, {4: ("interrupted", 130)}), *words)
    before = sweep_json()["points"]
    _, system = swept(System(250.0), *words)
    assert [c.target_qps for c in system.configs] == [100, 200, 200, 200, 200]
    assert dict(system.configs[0].dataset_option)["prefix"] == "0.5"
    assert sweep_json()["points"][:3] == before


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((*SERVER, "--cache", "cold"), "--cache is about the prompts that a server keeps"),
        ((*REMOTE, "--cache", "50%"), "add --dataset synthetic-prompts"),
        (
            (*REMOTE, "--cache", "cold", "--backend-option", "fresh=on"),
            "drop --backend-option fresh",
        ),
        ((*REMOTE, "--cache", "warm"), "write cold,warm"),
    ],
)
def test_options_that_do_not_fit_the_cache_are_refused(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*words, "--rate", "100"]) == 2
    assert said in capsys.readouterr().err
