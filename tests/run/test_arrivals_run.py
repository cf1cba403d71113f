"""Real runs with our own scheduler are valid, marked and repeatable, and `check` confirms their files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.loadgen import schedule
from harness.loadgen.logs import ANSWERS, DETAIL, SUMMARY
from harness.results.evidence.own_log import HARNESS

QUERIES = 1500


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("arrivals") / "schedule.csv"
    words = f"arrivals gamma --rate 1500 --cv 1.5 --duration 1s --seed 3 --out {out}"
    assert main(words.split()) == 0
    return out


@pytest.fixture(scope="module")
def replayed(written: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("replayed") / "run"
    words = f"--scenario server --arrivals {written} --slo p99=1s --quiet --out {out}"
    assert main(words.split()) == 0
    return out


@pytest.fixture(scope="module")
def kept_busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("busy") / "run"
    words = "--scenario server --backend null --mode performance --concurrency 16 --slo p99=1s"
    assert main([*words.split(), "--duration", "1s", "--quiet", "--out", str(out)]) == 0
    return out


def result(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((run / "result.json").read_text())
    return content


def columns(run: Path) -> dict[str, Any]:
    with np.load(run / "performance/run_1/completions.npz") as file:
        return dict(file)


def config(run: Path) -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((run / "config.yaml").read_text())
    return content


def test_a_replayed_run_is_valid_and_never_called_mlperf(replayed: Path, written: Path) -> None:
    content = result(replayed)
    assert content["verdict"] == "VALID"
    assert content["arrivals"]["source"] == content["latency_ns"]["source"] == HARNESS
    assert any("no MLPerf scenario" in note for note in content["not_for_submission"])
    left = {path.name for path in (replayed / "performance/run_1").iterdir()}
    assert left.isdisjoint((DETAIL, SUMMARY))
    # LoadGen writes the accuracy log, as in every run.
    assert (replayed / "accuracy" / DETAIL).is_file()


def test_every_query_was_due_when_the_file_says(replayed: Path, written: Path) -> None:
    done, stored = (
        columns(replayed),
        schedule.read_stored(str(replayed / "performance/run_1" / schedule.SCHEDULE)),
    )
    due_ns = done["scheduled_ns"] - done["scheduled_ns"][0]
    assert due_ns.tolist() == stored.after_ns.tolist()
    lines = [line for line in written.read_text().splitlines() if not line.startswith("#")]
    assert [f"{ns // 10**9}.{ns % 10**9:09d}" for ns in due_ns.tolist()] == lines
    assert bool((done["entry_ns"] >= done["scheduled_ns"]).all())


def test_answers_under_load_are_compared_with_the_accuracy_runs(replayed: Path) -> None:
    compared = result(replayed)["accuracy"]["compared"]
    logged = json.loads((replayed / "performance/run_1" / ANSWERS).read_text())
    assert compared["answers"] == len(logged) >= 500
    assert compared["differing"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("run", ["replayed", "kept_busy"])
def test_the_verdict_is_derived_again_from_files_alone(
    run: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = request.getfixturevalue(run)
    capsys.readouterr()
    assert main(["check", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{folder}: result.json agrees with the files; the run is ")


@pytest.mark.slow
def test_the_configuration_repeats_the_run_and_refuses_a_changed_file(
    replayed: Path, written: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    again = tmp_path / "again"
    words = ["--config", str(replayed / "config.yaml"), "--mode", "performance", "--quiet"]
    assert main([*words, "--out", str(again)]) == 0
    for name in ("index", "scheduled_ns"):
        ours, theirs = columns(replayed)[name], columns(again)[name]
        assert (ours - ours[0]).tolist() == (theirs - theirs[0]).tolist()
    capsys.readouterr()
    before = written.read_text()
    written.write_text(before + "100\n")
    assert main([*words, "--out", str(tmp_path / "third")]) == 2
    assert capsys.readouterr().err.startswith(f"harness: {written} has changed: its digest is ")
    written.write_text(before)


def test_a_different_arrival_option_replaces_that_of_the_configuration(
    replayed: Path, tmp_path: Path
) -> None:
    assert config(replayed)["arrivals_sha256"] == result(replayed)["arrivals"]["schedule_sha256"]
    words = ["--config", str(replayed / "config.yaml"), "--mode", "performance", "--quiet"]
    assert main([*words, "--concurrency", "4", "--queries", "700", "--out", f"{tmp_path}/c"]) == 0
    values = config(tmp_path / "c")
    assert values["concurrency"] == 4
    assert "arrivals" not in values
    assert "arrivals_sha256" not in values


def test_a_closed_loop_keeps_its_concurrency_and_obeys_littles_law(kept_busy: Path) -> None:
    content, rows = result(kept_busy), columns(kept_busy)
    assert content["verdict"] == "VALID"
    assert content["arrivals"]["concurrency"] == 16
    assert content["reference"]["reason"].startswith(
        "a run with a fixed number of queries in flight "
    )
    assert config(kept_busy)["concurrency"] == 16
    completed = np.sort(rows["completed_ns"])
    answered = np.searchsorted(completed, rows["entry_ns"], "right")
    assert int((rows["order"] + 1 - answered).max()) <= 16
    assert content["throughput_per_s"]["scheduled"] is None
    rate = content["throughput_per_s"]["completed"]
    in_flight = rate * content["latency_ns"]["mean"] / 1e9
    assert in_flight == pytest.approx(16, rel=0.02)


def test_a_schedule_that_was_exchanged_afterwards_is_found(
    replayed: Path, copied: Callable[[Path], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    run = copied(replayed)
    path = run / "performance/run_1" / schedule.SCHEDULE
    stored = schedule.read_stored(str(path))
    schedule.store(path, stored.after_ns * 2, stored.samples)
    assert main(["check", str(run)]) == 4
    assert "the queries were not due at the times in schedule.npz" in capsys.readouterr().out


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[Path], Path]:
    import shutil

    return lambda run: Path(shutil.copytree(run, tmp_path / "copy"))
