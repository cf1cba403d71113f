"""`cold` on real models: each of our backends, tables printed again from the folder, and refusals."""

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.core import registry
from harness.core.config.run_config import RunConfig
from harness.explain.cold import summary, tables
from harness.explain.cold.formats.starts import FORMATS, Absent, find
from harness.explain.cold.page import _with_shares, phases, started
from harness.explain.cold.trials import turns
from harness.explain.cold.trials.turns import Start
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.results.pages.tables import Table, columns
from tests.builders.refusals import Said


def _measured(out: Path, *arguments: str) -> dict[str, Any]:
    assert main(["cold", *arguments, "--runs", "3", "--out", str(out), "--quiet"]) == 0
    content: dict[str, Any] = json.loads((out / "cold.json").read_text())
    return content


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend",
    [
        *("ort", "openvino", "litert", "torch", "tensorflow", "executorch"),
        *("ncnn", "mnn", "tract"),
    ],
)
def test_every_built_in_backend_reports_its_phases(
    backend: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not registry.BACKENDS[backend].installed:
        pytest.skip(f"{backend} is not installed")
    content = _measured(
        *(tmp_path / "cold", "digits", "--backend", backend),
        *("--trials", "2", "--skip", "formats", "--skip", "sharing", "--skip", "benefit"),
    )
    row = content["starts"][0]
    assert row["failed"] is None
    assert len(row["warm"]) == 2
    for trial in (*row["cold"], *row["warm"]):
        assert trial["deserialise_ns"] > 0
        assert trial["rest_ns"] >= 0
        assert (trial["prepare_ns"] is None) == (backend in ("torch", "tensorflow"))
    assert all(trial["read_ns"] > 0 for trial in row["cold"])
    assert all(trial["read_ns"] is None for trial in row["warm"])
    assert sum(summary.shares(row["warm"]).values()) == pytest.approx(1)
    shown = capsys.readouterr().out
    assert "first answer after" in shown
    assert (tmp_path / "cold/cold.html").is_file()
    assert main(["cold", "--from", str(tmp_path / "cold")]) == 0
    again = capsys.readouterr().out
    assert shown.partition("\npage")[0] == again.partition("\npage")[0]


@pytest.mark.slow
def test_every_storage_format_starts_or_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The digits model exists for all frameworks except tract and trees. Two more formats, NNEF and ORT's own, are made
    from ONNX.
    """
    pytest.importorskip("onnx")
    content = _measured(
        *(tmp_path / "cold", "digits", "--trials", "1"), *("--skip", "sharing", "--skip", "benefit")
    )
    here = [one for one in FORMATS if registry.BACKENDS[one.backend].installed]
    names = [one.name for one in here if one.name != "torch.export" and one.backend != "trees"]
    assert [row["name"] for row in content["starts"][1:]] == names
    assert len(content["absent"]) == len(FORMATS) - len(names)
    for row in content["starts"]:
        assert row["failed"] is None, row["name"]
        assert row["warm"][0]["first_ns"] > 0
        assert row["size_bytes"] > 0
    assert not list((tmp_path / "cold").glob("made-*"))
    assert "ORT format" in capsys.readouterr().out


def test_an_invalid_option_shared_with_run_is_reported_once(refuses: Said) -> None:
    """Bug: `cold` uses two parsers, and both printed the same line."""
    assert refuses("cold", "digits", "--threads", "0") == "--threads: 0 must be between 1 and 1,024"


TRIAL = {
    "process_ns": 6e8,
    "framework_ns": 6e7,
    "read_ns": 4e6,
    "deserialise_ns": 6e5,
    "prepare_ns": 4e6,
    "rest_ns": 4e5,
    "input_ns": 8e4,
    "first_ns": 4e5,
    "steady_ns": 1e4,
    "peak_bytes": 86e6,
    "framework": "onnxruntime 1.0",
}


@pytest.mark.parametrize("finished", [0, 1, 2])
def test_a_stopped_command_keeps_only_the_finished_trials(
    finished: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Bugs: trials were saved only once per round; SIGTERM left the converted models in the folder."""
    left = iter([TRIAL] * finished)

    def trial_or_signal(*_: object, **__: object) -> dict[str, Any]:
        trial = next(left, None)
        if trial is None:
            os.kill(os.getpid(), signal.SIGTERM)
        return trial or {}

    monkeypatch.setattr(turns, "call", trial_or_signal)
    monkeypatch.setattr(turns, "_cooled", lambda _: None)
    out, skip = tmp_path / "cold", ("--skip", "formats", "--skip", "sharing", "--skip", "benefit")
    assert main(["cold", "digits", "--out", str(out), "--quiet", *skip]) == 128 + signal.SIGTERM
    said = capsys.readouterr().err
    assert said.endswith("harness: stopped by SIGTERM\n")
    kept = tmp_path / "cold.partial"
    if not finished:
        assert not kept.exists()
        return
    assert f"cold --from {kept} shows the results so far" in said
    assert [path.name for path in kept.iterdir()] == ["cold.json"]
    row = json.loads((kept / "cold.json").read_text())["starts"][0]
    assert len(row["cold"]) + len(row["warm"]) == finished
    assert main(["cold", "--from", str(kept)]) == 0
    assert "mean of 1 trial in turns" in capsys.readouterr().out


def test_the_bars_begin_at_the_start_of_the_process_like_the_headline() -> None:
    """Bugs: the headline counted from the start of the process, but the bars began after the import; in one plot of
    both, the phases after the import were too small to see.
    """
    drawn = started({"cold": [TRIAL]})
    names = [trace["name"] for trace in drawn.data]
    assert names == ["start of the process", "import of the framework", "after the import"]
    keys = [phase.key for phase in (*summary.OUTSIDE, *summary.PHASES)]
    times: dict[str, Any] = TRIAL
    whole_ns = sum(times[f"{key}_ns"] or 0 for key in keys)
    assert sum(trace["x"][0] for trace in drawn.data) == pytest.approx(whole_ns / 1e6, rel=1e-4)
    after = phases("", "", {"cold": [TRIAL]})
    own_ns = sum(times[f"{phase.key}_ns"] or 0 for phase in summary.PHASES)
    assert sum(trace["x"][0] for trace in after.data) == pytest.approx(own_ns / 1e6, rel=1e-4)


@pytest.mark.parametrize(
    ("warm_ns", "told"),
    [
        (
            (100, 110, 105),
            r"saves 1\.90 us of the time after the import \(95 %: 1\.89 us to 1\.91 us\)",
        ),
        (
            (1900, 2100, 2000),
            r"not shown to change the time after the import .*: more --trials may decide",
        ),
        (
            (9000, 9100, 9200),
            r"adds 7\.10 us to the time after the import, which other work may cause .*",
        ),
    ],
    ids=["saves", "undecided", "adds"],
)
def test_the_gain_of_the_page_cache_has_its_interval(warm_ns: tuple[int, ...], told: str) -> None:
    """Bug: a warm start was slower than a cold start, and no line mentioned it."""
    none = dict.fromkeys((f"{phase.key}_ns" for phase in summary.PHASES), 0)
    base = {"process_ns": 1, "framework_ns": 1, "steady_ns": 1, "framework": "ort", **none}
    cold = [{**base, "first_ns": ns} for ns in (2000, 2010, 2000)]
    warm = [{**base, "first_ns": ns} for ns in warm_ns]
    row = {"cold": cold, "warm": warm, "backend": "ort"}
    content = {"starts": [row], "benefit": {}, "fetch": {"absent": "-"}}
    (line,) = (one for one in tables.headlines(content) if one.startswith("page cache"))
    assert re.fullmatch(rf"page cache +{told}", line)


def test_a_model_of_one_file_says_which_formats_it_cannot_have(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    path = tmp_path / "net.tflite"
    path.write_bytes((MODELS_DIR / "digits.tflite").read_bytes())
    config = RunConfig.of(scenario="offline", backend="litert", model=str(path))
    found = find(config, load_model(str(path)), tmp_path, tmp_path / "log")
    assert [(one.name, one.path) for one in found if isinstance(one, Start)] == [("tflite", path)]
    absent = {one.name: one.reason for one in found if isinstance(one, Absent)}
    assert set(absent) == {one.name for one in FORMATS} - {"tflite"}
    assert "made from onnx" in absent["IR"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["digits", "--backend", "null"], "--backend null loads no model"),
        (["digits", "--backend", "kserve"], "loads the model on a server"),
        (["tinylm"], "token by token"),
        (["digits", "--backend", "orte"], "no backend named 'orte'"),
        (["digits", "--trials", "0"], "--trials"),
        (["digits", "--dataset", "folder"], "dataset 'folder' needs --data-dir"),
        ([], "cold needs a MODEL"),
        (["digits", "--from", "x"], "--from prints the tables of a folder"),
        (["--from", "x", "--trials", "3"], "drop --trials"),
    ],
)
def test_an_unmeasurable_request_is_refused_before_anything_starts(
    arguments: list[str], told: str, tmp_path: Path, refuses: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert told in refuses("cold", *arguments)
    assert not list(tmp_path.iterdir())


def test_a_file_that_the_framework_refuses_leaves_no_folder(tmp_path: Path, refuses: Said) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\x08\x08")
    words = ["cold", str(tmp_path / "net.onnx"), "--skip", "formats", "--out", str(tmp_path / "o")]
    assert "ONNX Runtime cannot load it" in refuses(*words, "--quiet")
    assert [path.name for path in tmp_path.iterdir()] == ["net.onnx"]


def test_a_time_without_an_interval_has_its_unit_beside_its_share() -> None:
    """Bug: with one trial, the page showed `7237685, 62.9 %`."""
    heads = columns("phase | cold [ns] | share cold [share] | warm [ns]")
    shown = _with_shares(Table("phases", "Phases", "", heads, [["load", 7_237_685, 0.629, None]]))
    assert [*shown.rows] == [["load", "7.24 ms, 62.9 %", "-"]]
