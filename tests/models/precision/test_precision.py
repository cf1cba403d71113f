"""Precisions made by the tool: int8 that scores as fp32 does, from samples that nobody scores."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.config.run_config import make_config, to_plain
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError
from harness.models.manifest.manifest import MODELS_DIR, load_model
from harness.models.precision.made import make
from harness.models.precision.samples import SAMPLES, calibration, digest
from harness.models.precision.ways import PRECISIONS, way
from harness.search.grid.same_network.network import difference
from harness.search.grid.same_network.network_files import of_onnx
from harness.types import DatasetSetup, HasCalibration

DIGITS = MODELS_DIR / "digits.onnx"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def request(precision: str, **values: Any) -> dict[str, Any]:
    config = to_plain(make_config({"scenario": "offline", **values.pop("config", {})}))
    given = {"config": config, "format": "onnx", "precision": precision}
    return {**given, "synthetic": False, "calibration_dir": None, **values}


def top1(path: Path) -> float:
    """In percent, of the 500 held-out digits."""
    ort = pytest.importorskip("onnxruntime")
    dataset = DigitsDataset(DatasetSetup())
    dataset.load(range(len(dataset)))
    inputs = dataset.batch(range(len(dataset))).inputs
    found = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, inputs)
    labels = np.array([dataset.label(i) for i in range(len(dataset))])
    return float((found[0].argmax(axis=1) == labels).mean() * 100)


def test_int8_digits_score_within_half_a_point_of_fp32() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    made = make(request("int8"))
    path = Path(made["file"])
    assert top1(DIGITS) == pytest.approx(99.2)
    assert abs(top1(path) - 99.2) <= 0.5
    assert {"QLinearConv", "QGemm"} <= set(made["kernels"])  # integer kernels, no float ones
    assert not {"Conv", "Gemm"} & set(made["kernels"])
    assert "200 samples of 'digits, training images', none of them scored" in made["about"]
    assert difference(of_onnx(DIGITS), of_onnx(path)) == ""
    stamp = path.stat().st_mtime_ns
    assert make(request("int8")) == made
    assert path.stat().st_mtime_ns == stamp  # kept by what it is made from
    path.write_bytes(b"another")
    make(request("int8"))
    assert path.stat().st_size > 1000  # a file that changed is made again


def test_fp16_says_what_is_computed_in_float32() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    made = make(request("fp16"))
    assert made["about"].startswith("stored")
    assert abs(top1(Path(made["file"])) - 99.2) <= 0.5
    assert of_onnx(Path(made["file"])).types == ("float16",)


def test_onnx_runtime_has_no_bfloat16_kernels_as_is_said() -> None:
    """When it gets them, `way` is to be changed."""
    ort = pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    kind, value = onnx.TensorProto.BFLOAT16, onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Conv", ["x", "w"], ["y"])],
        "net",
        [value("x", kind, [1, 1, 4, 4]), value("w", kind, [1, 1, 2, 2])],
        [value("y", kind, None)],
    )
    opsets = [onnx.helper.make_opsetid("", 22)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    with pytest.raises(Exception, match="NOT_IMPLEMENTED"):
        ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    assert way("ort", "bf16").absent


def test_every_precision_of_every_backend_is_a_way_or_a_reason() -> None:
    for backend in ("ort", "openvino", "torch", "tensorflow", "litert", "null", "mine.py:Mine"):
        assert not way(backend, "fp32").absent
        for precision in PRECISIONS[1:]:
            found = way(backend, precision)
            assert bool(found.absent) != bool(found.options or found.file)


def test_calibration_samples_are_real_and_never_scored() -> None:
    scored = DigitsDataset(DatasetSetup())
    assert isinstance(scored, HasCalibration)
    model, config = load_model("digits"), make_config({"scenario": "offline"})
    found = calibration(config, model, model.inputs, 8, None, synthetic=False)
    used = {row.tobytes() for feed in found.feeds for row in feed["image"]}
    scored.load(range(500))
    assert not used & {row.tobytes() for row in scored.batch(range(500)).inputs["image"]}
    assert len(used) == SAMPLES
    assert all(len(feed["image"]) == 8 for feed in found.feeds)
    noise = calibration(config, model, model.inputs, 8, None, synthetic=True)
    assert "seeded noise" in noise.about
    again = calibration(config, model, model.inputs, 8, None, synthetic=True)
    assert digest(noise.feeds) == digest(again.feeds)  # BO8


def write_npz(path: Path, first: int, count: int) -> None:
    images = np.arange(first, first + count, dtype=np.float32)[:, None, None, None]
    np.savez(path, image=np.broadcast_to(images, (count, 1, 8, 8)), labels=np.zeros(count))


def test_samples_that_are_scored_too_are_left_out(tmp_path: Path) -> None:
    scored, other, same = (tmp_path / f"{name}.npz" for name in ("scored", "other", "same"))
    write_npz(scored, 0, 10)
    write_npz(other, 5, 10)
    write_npz(same, 0, 5)
    model = load_model("digits")
    config = make_config({"scenario": "offline", "dataset": "npz", "data_dir": scored})
    found = calibration(config, model, model.inputs, 2, other, synthetic=False)
    values = sorted(float(row[0, 0, 0]) for feed in found.feeds for row in feed["image"])
    assert set(values) == {10.0, 11.0, 12.0, 13.0, 14.0}
    assert found.about.startswith("5 samples of ")
    assert "(5 that are were left out)" in found.about
    with pytest.raises(ConfigError, match="every sample there is scored, too"):
        calibration(config, model, model.inputs, 2, same, synthetic=False)
    with pytest.raises(ConfigError, match="name them with --calibration-dir"):
        calibration(config, model, model.inputs, 2, None, synthetic=False)


def test_a_model_of_an_old_opset_is_quantised_per_tensor(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    model = onnx.load(DIGITS)
    del model.opset_import[:]
    model.opset_import.append(onnx.helper.make_opsetid("", 11))
    old = tmp_path / "old.onnx"
    onnx.save(model, old)
    made = make(request("int8", config={"model": str(old)}, synthetic=True))
    assert made["about"].startswith("QDQ, weights int8 per tensor, ")
    assert made["kernels"]["QLinearConv"] == 2
