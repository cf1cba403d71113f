"""The real command runs with image files, a small ONNX model, the model's steps and an accuracy score."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.models.manifest.files import sha256_of
from tests.builders.pictures import encode
from tests.faults.command import Ended, result, run

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

STEPS: list[dict[str, Any]] = [
    {"decode": {"decoder": "opencv", "colour": "rgb"}},
    {"resize": {"size": 18, "keep": "shorter", "method": "area", "library": "opencv"}},
    {"crop": {"size": 16}},
    {"normalise": {"mean": [123.68, 116.78, 103.94]}},
    {"layout": {"order": "nchw"}},
]


def reddest(folder: Path, colour: str = "rgb") -> Path:
    """Writes a model that returns the brightest channel, and its manifest."""
    helper, kind = onnx.helper, onnx.TensorProto
    inputs = [helper.make_tensor_value_info("image", kind.FLOAT, ["batch", 3, 16, 16])]
    outputs = [helper.make_tensor_value_info("means", kind.FLOAT, ["batch", 3])]
    nodes = [helper.make_node("ReduceMean", ["image"], ["means"], axes=[2, 3], keepdims=0)]
    model = helper.make_model(
        helper.make_graph(nodes, "reddest", inputs, outputs),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=10,
    )
    folder.mkdir(exist_ok=True)
    onnx.save(model, str(folder / "reddest.onnx"))
    steps = [{"decode": {"decoder": "opencv", "colour": colour}}, *STEPS[1:]]
    manifest = {
        "name": f"reddest-{colour}",
        "version": "1",
        "description": "the brightest channel",
        "licence": "Apache-2.0",
        "task": "image-classification",
        "files": {"onnx": {"path": "reddest.onnx", "sha256": sha256_of(folder / "reddest.onnx")}},
        "inputs": [{"name": "image", "dtype": "float32", "shape": ["batch", 3, 16, 16], "preprocess": steps}],
        "outputs": [{"name": "means", "postprocess": "argmax"}],
        "dataset": "folder",
        "accuracy": {"metric": "top1", "target": 90.0},
    }  # fmt: skip
    path = folder / f"{colour}.yaml"
    path.write_text(yaml.safe_dump(manifest))
    return path


def coloured(folder: Path, count: int = 30) -> Path:
    """Writes images labelled by their brightest channel: 0 red, 1 green, 2 blue."""
    random = np.random.default_rng(0)
    lines = ["file,label"]
    (folder / "x").mkdir(parents=True, exist_ok=True)
    for i in range(count):
        pixels = random.integers(0, 60, (24, 40 + i, 3), np.uint8)
        pixels[..., i % 3] += 150
        (folder / f"x/{i}.jpg").write_bytes(encode(pixels, quality=95))
        lines.append(f"x/{i}.jpg,{i % 3}")
    (folder / "labels.csv").write_text("\n".join(lines))
    return folder


def offline(tmp_path: Path, model: Path, out: str, *more: str) -> Ended:
    length = () if "accuracy" in more else ("--queries", "300")
    return run(
        "--scenario", "offline", "--backend", "ort", "--model", str(model), *length,
        "--instances", "1", "--threads", "1", "--max-batch", "4",
        "--data-dir", f"{tmp_path}/data", "--out", f"{tmp_path}/{out}", *more,
        env={"XDG_CACHE_HOME": f"{tmp_path}/cache"},
    )  # fmt: skip


def environment(folder: Path) -> Any:
    return json.loads((folder / "environment.json").read_text())


@pytest.mark.slow
def test_images_are_measured_and_scored(tmp_path: Path) -> None:
    coloured(tmp_path / "data")
    rgb = reddest(tmp_path / "model")
    done = offline(tmp_path, rgb, "rgb", "--performance-count", "7")
    assert done.status == 0, done.said + done.printed
    content = result(tmp_path / "rgb")
    accuracy = content["accuracy"]
    assert (accuracy["value"], accuracy["samples"]) == (100.0, 30)

    about = environment(tmp_path / "rgb")["dataset"]
    assert [list(step) for step in about["steps"]["image"]] == [list(step) for step in STEPS]
    assert about["versions"]["opencv"].startswith("opencv-")
    assert environment(tmp_path / "rgb")["postprocess"] == [{"argmax": {}}]
    assert about["cache"].startswith(f"{tmp_path}/cache/mlperf-harness/images/")

    # A different colour order means a different input, so the digest changes; the model then confuses red and blue.
    done = offline(tmp_path, reddest(tmp_path / "model", "bgr"), "bgr", "--mode", "accuracy")
    assert done.status == 4
    assert result(tmp_path / "bgr")["accuracy"]["value"] == pytest.approx(100 / 3)
    assert environment(tmp_path / "bgr")["dataset"]["digest"] != about["digest"]

    # The configuration of a run contains the path of its data.
    os.utime(tmp_path / "data/x/1.jpg", ns=(1, 1))
    again = ("--config", f"{tmp_path}/rgb/config.yaml", "--out", f"{tmp_path}/again")
    done = run("--mode", "performance", *again, env={"XDG_CACHE_HOME": f"{tmp_path}/cache"})
    assert done.status == 0, done.said + done.printed
    (tmp_path / "data/x/1.jpg").write_bytes(encode(np.zeros((20, 20, 3), np.uint8)))
    done = run(*again[:3], f"{tmp_path}/third", env={"XDG_CACHE_HOME": f"{tmp_path}/cache"})
    assert done.status == 2
    assert "harness: the dataset has changed: its digest is " in done.said
