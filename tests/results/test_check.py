"""`check` derives a run's verdict from its files, and detects manual edits."""

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.loadgen.logs import ACCURACY, DETAIL, SUMMARY
from harness.loadgen.plan import InstanceGroup
from harness.machine.power.energy import PowerLog
from harness.results.recheck import check
from harness.results.verdict import score
from harness.types import PowerSource
from tests.builders.edited import edit, replace_text
from tests.builders.refusals import Said

NOTHING_LOADED = json.dumps(
    dict.fromkeys(("started", "dataset", "noise", "load", "loaded", "calibration", "stopped"))
    | {"dataset": "digits", "spec": InstanceGroup(1, 1, 1)._asdict(), "scored": True}
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("check") / "run"
    arguments = ["--scenario", "server", "--target-qps", "2000", "--queries", "2010"]
    arguments += ["--meter", "estimate=4"]
    # The bound is so wide that a busy machine does not change the verdict.
    arguments += ["--slo", "p99=5s"]
    assert main([*arguments, "--out", str(out), "--quiet"]) == 0
    return out


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(finished, tmp_path / "run"))


def test_a_finished_run_agrees_with_its_files(run: Path, prints: Said) -> None:
    assert prints("check", run) == (f"{run}: result.json agrees with the files; the run is VALID\n")


def test_agreement_names_the_verdict_of_an_invalid_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: for an INVALID run, `check` printed only that its files agree."""
    run = tmp_path / "missed"
    words = [
        *("--scenario", "single-stream", "--backend", "null", "--slo", "p90=1ns"),
        *("--mode", "performance"),
    ]
    assert main([*words, "--queries", "200", "--quiet", "--out", str(run)]) == 4
    capsys.readouterr()
    assert main(["check", str(run)]) == 0
    told = f"{run}: result.json agrees with the files; the run is INVALID (slo-missed)\n"
    assert capsys.readouterr().out == told


@pytest.mark.slow
def test_official_accuracy_run_agrees_with_loadgens_bound_in_its_files(
    tmp_path: Path,
) -> None:
    """Bug: `check` read LoadGen's bound only from the performance run."""
    out = tmp_path / "run"
    options = ["--scenario", "server", "--mlperf", "--mode", "accuracy", "--quiet", "--no-report"]
    assert main([*options, "--no-metrics", "--out", str(out)]) == 0
    assert json.loads((out / "result.json").read_text())["slo"] == "p99=10ms"
    assert check(out) == []


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (
            lambda r: r["latency_ns"].update(p99=1),
            "latency_ns.p99: result.json has 1, but the files",
        ),
        (
            lambda r: r["accuracy"].update(value=99.9),
            "accuracy.value: result.json has 99.9, but the",
        ),
        (lambda r: r["headline"].update(value=9e9), "headline.value: result.json has 90000"),
        (lambda r: r["stages_ns"]["infer"].update(p50=1), "stages_ns.infer.p50: result.json has"),
        (
            lambda r: r.update(verdict="INVALID"),
            "verdict: result.json has 'INVALID', but the files",
        ),
    ],
)
def test_a_number_edited_by_hand_is_found(
    run: Path, change: Callable[[dict[str, Any]], None], line: str, prints: Said
) -> None:
    edit(run / "result.json", change)
    assert prints("check", run, status=4).startswith(line)


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("queries: 2010", "queries: 5000", "queries is 5000, but the run used 2010"),
        ("device: cpu", "device: cuda", "device is cuda, but the run used cpu"),
        ("batch_wait: 0s", "batch_wait: 5ms", "batch_wait is 5ms, but the run used 0s"),
        ("- estimate=4", "- rapl", "meter is rapl, but the run used estimate=4"),
        ("meter:\n- estimate=4", "", "meter is None, but the run used estimate=4"),
        ("estimate=4", "estimate=9", "meter is estimate=9, but the run used estimate=4"),
    ],
)
def test_a_configuration_edited_by_hand_is_found(
    run: Path, old: str, new: str, line: str, prints: Said
) -> None:
    replace_text(run / "config.yaml", old, new)
    assert f"config.yaml: {line}" in prints("check", run, status=4).splitlines()


@pytest.mark.parametrize(
    "asked", [None, 3, [], "text", {"scenario": "nosuch"}, {"meter": {"a": 1}}]
)
def test_a_request_that_was_not_kept_by_a_run_is_reported_in_one_line(
    asked: object, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: a wrong value caused two lines; the second one was about --scenario on a command line."""
    edit(run / "findings.json", lambda said: said.update(asked=asked))
    assert main(["check", str(run)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(
        f"harness: {run}/findings.json does not contain the run's request under `asked`"
    )
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "old", "new", "line"),
    [
        ("environment.json", '"python"', '"pithon"', "environment.system.python: result.json has "),
        ("accuracy/accuracy.txt", "accuracy=", "accuracy=9", "accuracy.txt has no line 'accuracy"),
        ("performance/run_1/mlperf_log_summary.txt", "VALID", "INVALID", "the line 'Result is' states INVALID"),
        ("performance/run_1/mlperf_log_summary.txt", "No errors", "1 ERROR", "has no line 'No err"),
        ("accuracy/mlperf_log_summary.txt", "No errors", "2 ERRORS", "has no line 'No errors enc"),
        ("accuracy/mlperf_log_summary.txt", "No warnings", "3 warnings", "has no line 'No warn"),
        ("performance/run_1/run.json", '"ended": {', '"ended": null, "was": {', "verdict: result"),
        ("result.json", "not under the official rules", "official", "not_for_submission: result"),
    ],
)  # fmt: skip
def test_an_edit_in_any_file_is_found(
    run: Path, name: str, old: str, new: str, line: str, prints: Said
) -> None:
    replace_text(run / name, old, new)
    assert line in prints("check", run, status=4)


def test_the_findings_as_json(run: Path, prints: Said) -> None:
    """Bug: `check` did not support --json, so a script had to parse sentences."""
    (found,) = json.loads(prints("check", run, "--json"))
    assert found["agrees"]
    assert (found["folder"], found["verdict"], found["reasons"]) == (str(run), "VALID", [])
    edit(run / "result.json", lambda result: result["latency_ns"].update(p99=1))
    (found,) = json.loads(prints("check", run, "--json", status=4))
    assert not found["agrees"]
    assert any(
        line.startswith("latency_ns.p99: result.json has 1,") for line in found["differences"]
    )
    assert main(["check", str(run), "--json", "--details"]) == 2


def test_the_score_is_computed_again_unless_the_stored_one_counts(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: `submit plan` computed each score again, which takes minutes of CPU time for rouge."""
    monkeypatch.setattr(score, "compute", lambda *_: pytest.fail("computed again"))
    assert not check(run, scores=False)
    with pytest.raises(pytest.fail.Exception, match="computed again"):
        check(run)


def test_missing_file_of_the_seal_is_named(run: Path, refuses: Said) -> None:
    """Bugs: `rerun` reported that the run had ended before its first query, and `check` reported FileNotFoundError."""
    for name, verb in (("findings.json", "check"), ("config.yaml", "rerun")):
        (run / name).unlink()
        told = f"{run} has no {name}, which SHA256SUMS lists: copy the run's whole folder again"
        assert refuses(verb, run) == told
    (run / "SHA256SUMS").unlink()
    assert "has no config.yaml: its run ended before its first query" in refuses("rerun", run)


def test_a_result_without_a_verdict_does_not_name_check_in_check(run: Path, refuses: Said) -> None:
    edit(run / "result.json", lambda result: result.pop("verdict"))
    for verb, hint in (
        ("check", "changed since the run, or written by another version of the harness"),
        ("report", "run `check` for details"),
    ):
        told = f"{run}/result.json has no usable verdict: {hint}"
        assert refuses(verb, run) == told


def test_the_folder_of_an_unfinished_run_is_named(tmp_path: Path, refuses: Said) -> None:
    (tmp_path / "d.partial").mkdir()
    assert f"does not exist, but {tmp_path}/d.partial exists" in refuses("check", tmp_path / "d")


@pytest.mark.parametrize(
    "name", ["environment.json", "accuracy/accuracy.txt", "accuracy/mlperf_log_summary.txt"]
)
def test_missing_file_is_found(run: Path, name: str) -> None:
    (run / name).unlink()
    assert main(["check", str(run)]) != 0


def test_a_missing_file_comes_before_what_follows_from_it(run: Path) -> None:
    """Bug: `submit plan` prints the first line, which was about the verdict instead of the missing file."""
    path = run / "performance/run_1/mlperf_log_detail.txt"
    path.unlink()
    first, *others = check(run)
    assert first == f"{path} is missing, but SHA256SUMS lists it"
    assert others


def test_a_run_that_was_moved_agrees_with_its_files(run: Path, tmp_path: Path) -> None:
    assert main(["check", str(run.rename(tmp_path / "elsewhere"))]) == 0


def test_an_invalid_log_under_a_valid_result_is_found(run: Path, prints: Said) -> None:
    log = run / "performance/run_1/mlperf_log_detail.txt"
    log.write_text(log.read_text().replace('"value": "VALID"', '"value": "INVALID"'))
    assert "verdict: result.json has 'VALID', but the files have 'INVALID'" in prints(
        "check", run, status=4
    )


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", "{"),
        ("result.json", "[]"),
        ("config.yaml", "scenario: nosuch"),
        ("findings.json", "[]"),
        ("findings.json", '{"loaded": {"inputs": 3}}'),
        ("findings.json", NOTHING_LOADED),
        ("performance/run_1/run.json", "{}"),
        ("performance/run_1/run.json", '{"plan": 3}'),
        ("performance/run_1/completions.npz", "no zip"),
    ],
)
def test_a_broken_file_prints_one_line(run: Path, name: str, content: str, refuses: Said) -> None:
    (run / name).write_text(content)
    refuses("check", run)


def test_an_environment_of_another_run_is_found(
    run: Path, capsys: pytest.CaptureFixture[str], prints: Said
) -> None:
    path = run / "environment.json"
    edit(path, lambda said: said["loadgen"]["seeds"].update(schedule=7))
    edit(path, lambda said: said["dataset"].update(digest="b"))
    edit(path, lambda said: said.update(model_sha256="a"))
    lines = prints("check", run, status=4).splitlines()
    names = ("seeds is {", "dataset digest is b,", "model_sha256 is a,")
    starts = [f"environment.json: {name}" for name in names]
    starts += [f"{run}/report.html differs", f"{path} was changed after the run: "]
    for line, start in zip(lines, starts, strict=True):
        assert line.startswith(start)
    edit(path, lambda said: said.update(loadgen=-1))
    for verb in (["check"], ["compare", str(run)]):
        assert main([*verb, str(run)]) == 2
        assert ": its files do not fit together: " in capsys.readouterr().err


def test_a_plan_without_its_bound_is_named(run: Path, refuses: Said) -> None:
    path = run / "performance" / "run_1" / "run.json"
    edit(path, lambda said: said["plan"].update(concurrency=1, percentile=None))
    assert "is not a file of a run: " in refuses("compare", run, run)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("host.csv", "wall_ns,cpu_user_s\n12,much\n"),
        ("host.csv", "cpu_user_s\n3\n"),
        ("host.csv", "wall_ns\n1,2,3\n"),
        ("power.csv", "wall_ns,source,joules,watts\n1,x,,\n"),
        ("power.csv", "wall_ns\n1\n"),
        ("power.csv", "\xff"),
    ],
)
def test_a_broken_table_of_samples_is_named(
    run: Path, name: str, content: str, refuses: Said
) -> None:
    """Bug: the message named findings.json instead of the broken table."""
    power = PowerLog((PowerSource("x", "all", "W"),)).to_json()
    edit(run / "findings.json", lambda said: said.update(power=power))
    (run / "power.csv").write_text("")
    (run / name).write_bytes(content.encode("latin-1"))
    assert refuses("check", run).startswith(f"{run}/{name} is not a file of a run: ")


def test_folder_without_a_run_is_reported_in_one_line(tmp_path: Path, refuses: Said) -> None:
    assert refuses("check", tmp_path) == (
        f"{tmp_path} has no result.json: check that it is a run's folder"
    )


def test_a_folder_of_runs_names_its_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: Said
) -> None:
    """Bug: `check results`, and every other verb that reads a run, reported only that a file was missing.

    Bug: run-2 was listed before run-1.
    """
    monkeypatch.chdir(tmp_path)
    for number in range(5):
        folder = Path(f"results/run-{number}")
        folder.mkdir(parents=True)
        for name in ("result.json", "config.yaml"):
            (folder / name).write_text("{}")
        os.utime(folder, (number, number))
    Path("results/latest").symlink_to("run-4")
    for words in (["check", "results"], ["report", "results"], ["--config", "results"]):
        assert refuses(*words).endswith(
            "results is not a run's folder, but contains runs (results/run-2, results/run-3, "
            "results/run-4 and 2 more): name one of them"
        )


@pytest.mark.parametrize("name", ["result.json", "findings.json", "performance/run_1/run.json"])
def test_repeated_key_in_a_file_is_named(run: Path, name: str) -> None:
    """Bug: a file with `{"verdict": "INVALID", ..., "verdict": "VALID"}` agreed with the other files."""
    text = (run / name).read_text()
    (run / name).write_text(text.replace("{", '{"verdict": "INVALID", "verdict": "VALID", ', 1))
    with pytest.raises(ConfigError, match="'verdict' appears twice"):
        check(run)


@pytest.mark.parametrize(
    ("name", "old", "new", "finding"),
    [
        (DETAIL, r'"result_99.00_percentile_latency_ns", "value": \d+', r"\g<0>0", "log-changed"),
        (DETAIL, r'"effective_target_latency_ns", "value": \d+', r"\g<0>0", "wrong-settings"),
        (DETAIL, r'(_samples_per_sec", "value": )(\d)', r"\g<1>9\2", "numbers-disagree"),
        (SUMMARY, r"(50.00 percentile latency \(ns\) +: )", r"\g<1>9", "50.00 percentile"),
        (SUMMARY, r"(target_qps : )", r"\g<1>9", "target_qps"),
        (ACCURACY, r'"qsl_idx" : \d+', '"qsl_idx" : 7', "numbers-disagree"),
    ],
)
def test_an_edit_of_loadgens_files_is_found(
    run: Path, name: str, old: str, new: str, finding: str
) -> None:
    """Bug: `check` trusted the detail log and three lines of the summary."""
    path = run / "performance" / "run_1" / name
    text = path.read_text()
    edited = re.sub(old, new, text)
    assert edited != text
    path.write_text(edited)
    assert any(finding in line for line in check(run)), check(run)
