"""The command logs and scores all kinds of answers."""

import hashlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from harness.core.config.run_config import RunConfig
from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable
from harness.loadgen.logs import ACCURACY, read_answers
from harness.models.manifest.lookup import load_model
from harness.results.recheck import check
from harness.run.supervisor import preflight
from tests.builders.table_data import COUNT, SIDE, heads, logits, placed

ROOT = Path(__file__).parents[2]
DATA = Path(__file__).parents[1] / "builders/table_data.py"
BOXES, NUMBERS = (("--dataset", f"{DATA}:{name}") for name in ("Boxes", "Numbers"))
MANIFEST = """
name: table
version: "1"
description: Looks its output up
licence: none
task: none
files: {{onnx: {{path: table.onnx, sha256: {sha256}}}}}
inputs: [{{name: number, dtype: int64, shape: [batch, 1]}}]
outputs: [{{name: y, postprocess: [{steps}]}}]
dataset: synthetic
accuracy: {{metric: {metric}, target: {target}}}
"""


def model(folder: Path, table: Any, steps: str, metric: str, target: float) -> str:
    """Writes an ONNX file that answers the number i with row i of a table, and its manifest."""
    graph = helper.make_graph(
        [
            helper.make_node("Squeeze", ["number", "axes"], ["rows"]),
            helper.make_node("Gather", ["table", "rows"], ["y"], axis=0),
        ],
        "table",
        [helper.make_tensor_value_info("number", TensorProto.INT64, ["batch", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", *table.shape[1:]])],
        [
            numpy_helper.from_array(table, "table"),
            numpy_helper.from_array(np.array([1], np.int64), "axes"),
        ],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    onnx.save(made, str(folder / "table.onnx"))
    sha256 = hashlib.sha256((folder / "table.onnx").read_bytes()).hexdigest()
    manifest = folder / "table.yaml"
    text = MANIFEST.format(sha256=sha256, steps=steps, metric=metric, target=target)
    manifest.write_text(text)
    return str(manifest)


def run(folder: Path, *arguments: str) -> tuple[dict[str, Any], dict[int, bytes]]:
    """Returns result.json and the accuracy log of a VALID accuracy run that `check` confirms."""
    out = folder / "run"
    words = [*arguments, "--mode", "accuracy", "--quiet", "--out", str(out)]
    done = subprocess.run(
        [sys.executable, "-m", "harness", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert check(out) == []
    answers = list(read_answers(out / "accuracy" / ACCURACY))
    found = dict(answers)
    # The duplicates in the last query of multi-stream also have the same answer.
    assert all(found[i] == payload for i, payload in answers)
    assert sorted(found) == list(range(COUNT))
    return json.loads((out / "result.json").read_text()), found


@pytest.mark.slow
def test_a_models_detections_are_scored_by_mean_average_precision(tmp_path: Path) -> None:
    """The model finds half of the categories on every image, so the score is 50 %. LoadGen pads the last query, which
    does not change the score.
    """
    pytest.importorskip("pycocotools")
    manifest = model(tmp_path, heads(), "boxes", "map", 49.5)
    result, answers = run(tmp_path, "--scenario", "multi-stream", "--model", manifest, *BOXES)
    assert result["accuracy"]["value"] == pytest.approx(50)
    assert result["accuracy"]["details"]["map75"] == pytest.approx(50)
    assert (tmp_path / "run/accuracy/accuracy.txt").read_text() == "mAP=50.000%\n"
    for i, payload in answers.items():
        x, y, width, height = placed(i)
        corners = np.array([y - height / 2, x - width / 2, y + height / 2, x + width / 2]) / SIDE
        row = np.array([i, *corners, 0.75, 0], np.float32)
        assert payload == (row.tobytes() if i != 3 else b"")


@pytest.mark.slow
def test_top5_scores_the_best_five_labels(tmp_path: Path) -> None:
    steps = "softmax, topk: {k: 5}"
    manifest = model(tmp_path, logits(), steps, "top5", 99.9)
    result, answers = run(tmp_path, "--scenario", "offline", "--model", manifest, *NUMBERS)
    assert result["accuracy"]["value"] == 100
    assert result["accuracy"]["details"] == {"top1": 50}
    best = np.argsort(-logits(), axis=1)[:, :5]
    assert answers == {i: best[i].tobytes() for i in range(COUNT)}


def test_a_hooks_answers_of_different_lengths_are_in_the_log(tmp_path: Path) -> None:
    """The answer to sample i is its best 1 + i % 10 labels."""
    (tmp_path / "best.py").write_text(
        "def best(outputs, indices):\n"
        "    order = (-outputs['y']).argsort(axis=1)\n"
        "    return [row[: 1 + i % 10] for row, i in zip(order, indices)]\n"
    )
    steps = "hook: {file: best.py, function: best}"
    manifest = model(tmp_path, logits(), steps, "top1", 49.5)
    hook = ("--hook", str(tmp_path / "best.py"))
    result, answers = run(tmp_path, "--scenario", "server", "--model", manifest, *NUMBERS, *hook)
    assert result["accuracy"]["value"] == 50
    best = np.argsort(-logits(), axis=1)
    assert answers == {i: best[i, : 1 + i % 10].tobytes() for i in range(COUNT)}


def test_a_metric_without_its_package_is_refused_before_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    message = f"metric 'rouge' needs the module 'rouge_score': {how_to_install('rouge')}"
    with pytest.raises(PluginUnavailable) as caught:
        preflight.check(
            RunConfig(scenario="offline", backend="null"), load_model("digits"), "digits", "rouge"
        )
    assert str(caught.value) == message
    quick = RunConfig(scenario="offline", backend="null", mode="performance")
    preflight.check(quick, load_model("digits"), "digits", "rouge")
