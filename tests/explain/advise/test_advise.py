"""The verb `advise` on real models: layers, levels, int8, storage, self-checks."""

import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli.explain import advise

pytestmark = pytest.mark.slow


def test_advise_on_digits_works_from_end_to_end(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in ("onnx", "onnxruntime"):
        pytest.importorskip(module)
    database = tmp_path / "layers.sqlite"
    shared = ["--database", str(database), "--samples", "50", "--passes", "1", "--pairs", "2"]
    out = tmp_path / "one"
    assert advise(["--model", "digits", "--threads", "1", "--out", str(out), *shared]) == 0
    text = capsys.readouterr().out
    advice = json.loads((out / "advise.json").read_text())
    assert advice["coverage"]["layers_time"] == 1.0
    assert advice["coverage"]["work_nodes"] == 1.0
    assert {row["graph"]: row["kernels"] for row in advice["levels"]}["off"] == 9
    assert (
        advice["accuracy"]["own_score"] - advice["accuracy"]["score"] == advice["accuracy"]["drop"]
    )
    assert 0.9 <= advice["accuracy"]["agreement"] <= 1
    assert advice["accuracy"]["quantisation_samples"] == 200
    assert not advice["accuracy"]["quantisation_samples_are_scored"]
    assert all(one["passed"] for one in advice["parts"]["operators"])
    assert [row["format"] for row in advice["parts"]["storage"]] == ["inline", "external", "ort"]
    assert all(len(row["rounds"]) == 3 for row in advice["parts"]["storage"])
    checks = advice["parts"]["checks"]
    assert checks["repeatability"]["outputs"][0]["varying"] == 0
    assert checks["micro_batches"]["largest_difference"] < 1e-5
    peak = checks["micro_batches"]["peak_bytes"]
    assert peak["in_parts"] <= peak["at_once"]
    assert advise(["--from", str(out)]) == 0
    assert capsys.readouterr().out == text

    again = ["--model", "digits", "--threads", "1", "--out", str(tmp_path / "two"), *shared]
    skipped = [
        word for part in ("weights", "storage", "operators", "checks") for word in ("--skip", part)
    ]
    assert advise([*again, *skipped]) == 0
    counted = json.loads((tmp_path / "two/advise.json").read_text())["counted"]
    # Up to six calls may be new, because noise may change the chosen combination.
    assert counted["ran"] <= 6
    assert counted["found"] >= 36


def test_a_forced_pair_of_transposes_is_reported(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper = onnx.helper
    weights = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], "product"),
        helper.make_node("Transpose", ["a"], ["b"], "there", perm=[0, 2, 1]),
        helper.make_node("Transpose", ["b"], ["c"], "back", perm=[0, 2, 1]),
        helper.make_node("Relu", ["c"], ["y"], "relu"),
    ]
    tensors = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, ["batch", 64, 64]) for n in "xy"
    ]
    graph = helper.make_graph(
        nodes, "pair", tensors[:1], tensors[1:], [onnx.numpy_helper.from_array(weights, "w")]
    )
    path = tmp_path / "pair.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    out = tmp_path / "out"
    words = ["--model", str(path), "--graph", "off", "--vary", "graph", "--passes", "1"]
    skipped = [
        word for part in ("weights", "storage", "operators", "checks") for word in ("--skip", part)
    ]
    database = str(tmp_path / "l.sqlite")
    assert (
        advise([*words, *skipped, "--pairs", "1", "--out", str(out), "--database", database]) == 0
    )
    kernels = json.loads((out / "advise.json").read_text())["kernels"]
    assert [k["op"] for k in kernels["unexpected"]] == ["Transpose", "Transpose"]
    assert kernels["in_file"] == ["Transpose 'there' is followed by 'back'"]
