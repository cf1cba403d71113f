"""The files with which a user applies the advice of `advise`."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.core.config.run_config import RunConfig, from_plain, to_plain
from harness.core.files import sha256
from harness.explain.advise.output import apply
from harness.explain.advise.output.page import _head
from harness.explain.advise.output.text import conclusion
from harness.models.precision.made import make
from harness.results.pages.page import command_html

SEQUENTIAL = "graph={graph} threads=1 execution=sequential precision={precision}"


def one(
    graph: str = "all",
    precision: str = "file",
    *,
    verdict: str = "faster",
    gain: float = 0.3,
    needs: str = "",
    broken: str = "",
    score: float | None = None,
) -> dict[str, Any]:
    """Returns an entry of `advice` in advise.json."""
    return {
        "setting": SEQUENTIAL.format(graph=graph, precision=precision),
        "change": f"graph={graph} precision={precision}",
        "verdict": verdict,
        "realised": {"gain": gain, "low": None, "high": None},
        "needs": needs,
        "accuracy": {"broken": broken, "score": score} if precision == "int8" else None,
    }


def written(folder: Path, *advice: dict[str, Any]) -> tuple[RunConfig | None, list[str]]:
    """Returns the written configuration, and the lines that report it."""
    now = SEQUENTIAL.format(graph="basic", precision="file")
    document: Any = {"advice": list(advice), "now": now, "batch": 4}
    (folder / "int8.onnx").write_bytes(b"int8")
    apply.write(document, {"backend": "ort", "model": "digits"}, folder)
    file = folder / "faster.yaml"
    config = from_plain(yaml.safe_load(file.read_text()), str(file)) if file.exists() else None
    return config, apply.lines(document, folder)


def test_a_configuration_runs_the_int8_file(tmp_path: Path) -> None:
    """Bug: the advice was to `take it`, but named neither a file nor a command."""
    config, lines = written(tmp_path, one(precision="int8"))
    assert config is not None
    assert (config.model, config.threads) == ("digits", 1)
    assert config.model_file == tmp_path / "int8.onnx"
    assert config.model_sha256 == sha256(tmp_path / "int8.onnx")
    assert config.backend_option == (("graph", "all"),)
    assert lines == [
        "faster      graph=all precision=int8, 30.0 % of the time saved",
        f"take it     python -m harness --config {tmp_path}/faster.yaml",
    ]


def test_the_proof_command_makes_both_runs_and_reruns_them_in_turns(tmp_path: Path) -> None:
    _, lines = written(tmp_path, one(precision="int8", score=97.5))
    harness = "python -m harness"
    assert lines[-1] == (
        f"prove it    {harness} --config {tmp_path}/before.yaml --instances 1 --out {tmp_path}-before && "
        f"{harness} --config {tmp_path}/faster.yaml --instances 1 --out {tmp_path}-faster && "
        f"{harness} rerun {tmp_path}-before {tmp_path}-faster --optimised"
    )
    before = from_plain(yaml.safe_load((tmp_path / "before.yaml").read_text()), "before.yaml")
    assert (before.threads, before.model_file) == (1, None)
    assert before.backend_option == (("graph", "basic"),)
    after = from_plain(yaml.safe_load((tmp_path / "faster.yaml").read_text()), "faster.yaml")
    # Bug: each warm-up chose a different batch size.
    assert before.max_batch == after.max_batch == 4
    _, lines = written(tmp_path, one("off"))
    assert lines[-1].endswith("-faster")


def test_the_page_shows_the_commands_of_the_terminal(tmp_path: Path) -> None:
    """Bug: advise.html omitted both `take it` and `prove it`."""
    timed = {
        "question": "Q2",
        "now_ns": 2e6,
        "predicted_ns": 1e6,
        "gain": 0.5,
        "within": None,
        "clock": "wall",
    }
    fast = one("off") | timed
    document: Any = {
        "advice": [fast],
        "now": SEQUENTIAL.format(graph="basic", precision="file"),
        "batch": 1,
        "model": {"name": "digits", "has_random_weights": False},
        "runtime": "ONNX Runtime",
        "questions": [],
        "top": fast,
        "measured": dict.fromkeys(("wall_ns", "median_wall_ns"), 1e6)
        | {"wall_over_cpu": None, "contended": False},
        "stopped": False,
        "lower_bound": {"why_none": ""},
        "accuracy": None,
        "counted": {"elsewhere": 0},
    }
    assert "take it" not in "".join(_head(document, tmp_path))
    apply.write(document, {"backend": "ort", "model": "digits"}, tmp_path)
    head = "".join(_head(document, tmp_path))
    commands = apply.commands(document, tmp_path)
    assert [label for label, _ in commands] == ["take it", "prove it"]
    for label, command in commands:
        lines = command.replace(" && ", " &&\n")
        assert f"<p>{label.capitalize()}:</p>{command_html(lines)}" in head


def test_the_setting_that_saved_the_most_time_is_taken(tmp_path: Path) -> None:
    """Bug: no file was written if the setting with the highest prediction was not the one that was measured."""
    config, _ = written(
        tmp_path,
        one("off", verdict="undecided", gain=0.5),
        one("basic", gain=0.1),
        one("extended", gain=0.2),
        one(precision="int8", gain=0.4, needs="whether 2.00 % of top1 may be lost"),
    )
    assert config is not None
    assert config.backend_option == (("graph", "extended"),)
    assert config.model_file is None


def test_the_conclusion_is_the_best_measurement_not_the_top_prediction() -> None:
    """Bug: the list of studies named threads=2, which was undecided, instead of int8, which was 75 % faster."""
    top = {
        **one("off", verdict="undecided"),
        "realised": {"gain": 0.1, "low": None, "high": None, "pairs": 7},
    }
    int8 = one(precision="int8", gain=0.75, needs="whether 0.20 % of top1 may be lost")
    content: Any = {"advice": [top, int8], "top": top, "stopped": False, "unpredicted": []}
    assert conclusion(content) == (
        "graph=all precision=int8 saves 75.0 % of the time, as measured; decide first "
        "whether 0.20 % of top1 may be lost"
    )
    undecided = conclusion(content | {"advice": [top]})
    assert undecided.startswith(
        "graph=off precision=file: the top advice by prediction, undecided after 7 pairs"
    )


def test_a_faster_file_of_unknown_accuracy_is_left_to_the_user(tmp_path: Path) -> None:
    """Bug: int8 was 55 % faster on a model without labels, but no command used it."""
    needs = "whether its accuracy is acceptable: random weights"
    config, lines = written(tmp_path, one(precision="int8", needs=needs))
    assert config is not None
    assert config.model_file == tmp_path / "int8.onnx"
    assert lines[1] == f"decide      {needs}"


@pytest.mark.parametrize(
    ("advice_json", "output"),
    [
        (one(verdict="slower"), []),
        (one(precision="int8", needs="nothing: do not use it", broken="other answers"), []),
        ({**one(), "setting": "graph=all threads=2 execution=parallel precision=file"}, [(
            "take it  "
            "   graph=all precision=file: backend ort has no option that sets this"
        )]),
    ],
    ids=["slower", "broken", "no option"],
)  # fmt: skip
def test_without_usable_advice_nothing_is_written(
    advice_json: dict[str, Any], output: list[str], tmp_path: Path
) -> None:
    assert written(tmp_path, advice_json) == (None, output)


@pytest.mark.slow
def test_the_printed_command_runs_the_faster_model(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    request = {
        "config": to_plain(RunConfig(scenario="offline")),
        "format": "onnx",
        "precision": "int8",
        "synthetic": False,
        "calibration_dir": None,
    }
    folder = tmp_path / "advice"
    folder.mkdir()
    shutil.copyfile(make(request)["file"], folder / "int8.onnx")
    now = SEQUENTIAL.format(graph="all", precision="file")
    document: Any = {"advice": [one(precision="int8")], "now": now, "batch": 1}
    apply.write(document, {"backend": "ort", "model": "digits"}, folder)
    command = shlex.split(apply.lines(document, folder)[-1].removeprefix("take it"))
    command = [sys.executable, *command[1:], "--duration", "500ms", "--no-metrics", "--out", "run"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 4), done.stderr
    result = json.loads((tmp_path / "run/result.json").read_text())
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["model_sha256"] == sha256(folder / "int8.onnx")
    assert result["accuracy"]["value"] > 95
