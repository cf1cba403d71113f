"""The rate for Server comes from a finished `peak`, from a user.conf, or from a search by `submit run`."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.loadgen import user_conf
from harness.submit.plan import execute
from harness.submit.plan.matrix import DONE, MISSING, STALE, plan, problems, search
from harness.submit.plan.request import Request
from harness.submit.plan.request_file import read_request, write_request
from tests.builders.refusals import refusal, refused
from tests.faults.command import run_here
from tests.stand_ins.fake_submission_runs import CLOSED, FAKE, WORDS, make_peak

PLAN = ("submit", "plan", "--work")
WITHOUT_RATE = WORDS[:-2]
LOOSER = "this is looser than the round's bound for Server, p99=15ms"
NO_RATE = replace(CLOSED, options={"model": "digits", "backend": "ort"})
SEARCHED = replace(NO_RATE, options={**NO_RATE.options, "slo": "p99=12ms"})


def server_rates(request: Request, work: Path) -> set[float | None]:
    return {r.config.target_qps for r in plan(request, work) if r.scenario == "Server"}


@pytest.mark.parametrize("file", ["", "peak.json"])
def test_rate_is_that_of_the_found_peak(file: str, tmp_path: Path) -> None:
    peak = make_peak(tmp_path / "found")
    words = ["submit", "plan", "--work", str(tmp_path / "w"), *WITHOUT_RATE]
    assert main([*words, "--peak", str(peak / file)]) == 0
    request = read_request(tmp_path / "w")
    assert request.options["target_qps"] == "1234.5"
    assert server_rates(request, tmp_path) == {1234.5}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"scenario": "multi-stream", "unit": "s/q"}, "is not a search for Server's rate"),
        ({"peak": None}, "has no rate: pass a different search"),
        ({"peak": True}, "has no rate: pass a different search"),
        (
            {"model": "resnet50"},
            (
                "used --model resnet50, but this request has digits: pass a search "
                "with --model digits"
            ),
        ),
        (
            {"backend": "null"},
            "used --backend null, but this request has ort: pass a search with --backend ort",
        ),
        ({"slo": "p99=20ms"}, f"searched under p99=20ms: {LOOSER}"),
        ({"slo": "p95=10ms"}, f"searched under p95=10ms: {LOOSER}"),
        ({"slo": "soon"}, "'soon' is not an SLO"),
    ],
)
def test_unsuitable_peak_is_refused(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    peak = make_peak(tmp_path / "found", **changed)
    (line,) = refused(*PLAN, tmp_path / "w", *WITHOUT_RATE, "--peak", peak)
    assert told in line
    assert not (tmp_path / "w").exists()


def test_warning_of_a_peak_is_repeated(tmp_path: Path) -> None:
    text = "389 of 583 offered queries/s were completed"
    peak = make_peak(tmp_path / "found", warnings=[text])
    ended = run_here(*PLAN, str(tmp_path / "w"), *WITHOUT_RATE, "--peak", str(peak))
    assert ended.status == 0
    assert f"{peak / 'peak.json'}: {text}" in ended.said


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((*WORDS, "--peak", "found"), "--target-qps and --peak both set Server's rate"),
        ((*WORDS, "--slo", "p99=12ms"), "--slo requests a search for Server's rate"),
        ((*WITHOUT_RATE, "--concurrency", "4"), "--concurrency sets when queries arrive"),
        ((*WITHOUT_RATE, "--user-conf", "none"), "none cannot be read"),
    ],
)
def test_options_that_contradict_leave_no_request_behind(
    words: tuple[str, ...], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_peak(tmp_path / "found")
    (line,) = refused(*PLAN, "w", *words)
    assert told in line
    assert not Path("w").exists()


def test_the_rate_is_that_of_the_user_conf(tmp_path: Path) -> None:
    conf = tmp_path / "user.conf"
    conf.write_text("*.Server.target_qps = 100\n*.Offline.target_qps = 7\n")
    request = replace(NO_RATE, options={**NO_RATE.options, "user_conf": str(conf)})
    rows = plan(request, tmp_path)
    assert list(problems(request, rows)) == []
    assert {r.queries for r in rows if r.name == "Server-TEST01"} == {60_000}
    conf.write_text("*.Offline.target_qps = 7\n")
    assert "Server needs a rate" in next(problems(request, plan(request, tmp_path)))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("*.Server.target_qps = 1\nresnet50.Server.target_qps = 2\n", "2"),
        ("resnet50.*.target_qps = 2\n*.Server.target_qps = 1\n", "1"),
        ("*.*.target_qps = 3\nbert.Server.target_qps = 2\n*.Offline.target_qps = 4\n", "3"),
        ("# *.Server.target_qps = 1\nbert.Server.target_qps = 2\n", None),
        ("3d-unet.Server.target_qps = 2\n", None),
    ],
)
def test_a_value_is_taken_by_loadgens_precedence(text: str, found: str | None) -> None:
    assert user_conf.value(text, "resnet50", "Server", "target_qps") == found


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"options": {"slo": "p99=20ms"}}, f"--slo p99=20ms: {LOOSER}"),
        ({"options": {"slo": "p90=10ms"}}, f"--slo p90=10ms: {LOOSER}"),
        ({"options": {"slo": "fast"}}, "--slo: 'fast' is not an SLO"),
        ({"options": {"slo": ["p99=9ms", "p90=8ms"]}}, "--slo appears twice: keep one"),
        (
            {"options": {"slo": ["ttft:p99=9ms"]}},
            "--slo ttft:p99=9ms: the search for Server's rate",
        ),
        (
            {"options": {"slo": "p99=9ms"}, "category": "edge"},
            f"--slo applies to Server, which {CLOSED.benchmark} does not have in the category edge: remove --slo",
        ),
        (
            {"options": {"slo": "p99=9ms"}, "category": "edge", "division": "open"},
            "--slo applies to Server, which is not among the scenarios: remove --slo, or add Server to --scenarios",
        ),
    ],
)
def test_an_slo_that_the_round_does_not_know_is_refused(changed: dict[str, Any], told: str) -> None:
    assert told in refusal(replace, CLOSED, **changed)


@pytest.mark.slow
def test_an_slo_without_a_rate_searches_for_it_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_request(tmp_path, SEARCHED)
    assert main(["submit", "plan", "--work", str(tmp_path)]) == 0
    assert "Server-peak " in capsys.readouterr().out
    monkeypatch.setattr(execute, "_COMMAND", FAKE)
    (tmp_path / "fail-Server-peak").touch()
    assert execute.execute(SEARCHED, tmp_path, "Server") == 4
    told = capsys.readouterr().err
    assert "Server-peak exit status 5" in told
    assert "Server-peak found no rate, so Server is skipped" in told
    assert {row.state for row in plan(SEARCHED, tmp_path)} == {MISSING}
    (tmp_path / "fail-Server-peak").unlink()
    assert execute.execute(SEARCHED, tmp_path, "Server") == 0
    assert "first: Server-peak done" in capsys.readouterr().err
    assert server_rates(SEARCHED, tmp_path) == {1234.5}
    assert {r.state for r in plan(SEARCHED, tmp_path) if r.scenario == "Server"} == {DONE}
    assert execute.execute(SEARCHED, tmp_path, "Server") == 0
    # The search is not repeated, because the found rate is stored.
    assert "Server-peak" not in capsys.readouterr().err
    tighter = replace(SEARCHED, options={**SEARCHED.options, "slo": "p99=9ms"})
    row = search(tighter, tmp_path)
    assert row is not None
    assert row.state == MISSING
    assert {r.state for r in plan(tighter, tmp_path) if r.scenario == "Server"} == {STALE}


def test_the_search_confirms_for_a_minute_and_under_no_official_rules() -> None:
    config = SEARCHED.search_config()
    assert (config.duration_ns, config.performance_count) == (60 * 10**9, 1024)
    assert (config.mlperf, [*map(str, config.slo)]) == (False, ["p99=12ms"])
    run = SEARCHED.run_config("Server", "performance", None, 500.0)
    assert (run.mlperf, run.target_qps) == (True, 500)


def test_a_short_rehearsal_is_judged_by_its_own_slo(tmp_path: Path) -> None:
    options = {"model": "digits", "duration": "2s", "target_qps": 100.0}
    request = replace(CLOSED, rehearsal=True, options=options)
    slos = {r.scenario: " ".join(map(str, r.config.slo)) for r in plan(request, tmp_path)}
    assert slos == {"SingleStream": "", "MultiStream": "", "Server": "p99=15ms",
                    "Offline": ""}  # fmt: skip
    request = replace(request, options={**options, "slo": "p99=2s"})
    slos = {r.scenario: " ".join(map(str, r.config.slo)) for r in plan(request, tmp_path)}
    assert slos["Server"] == "p99=2s"
    assert search(request, tmp_path) is None


def test_options_of_server_reach_no_other_scenario(tmp_path: Path) -> None:
    options = {**CLOSED.options, "dispatch": "deadline", "batch_wait": "1ms"}
    rows = plan(replace(CLOSED, options=options), tmp_path)
    found = {r.scenario: (r.config.dispatch, r.config.batch_wait_ns) for r in rows}
    assert found["Server"] == ("deadline", 1_000_000)
    assert found["Offline"] == ("elastic", 0)


def test_only_is_one_of_the_scenarios(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--only Sever: choose from SingleStream, "):
        execute.execute(CLOSED, tmp_path, "Sever")
