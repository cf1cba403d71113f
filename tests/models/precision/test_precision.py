"""The tool converts precisions: int8 scores like fp32, and the samples for calibration are not scored."""

import shutil
import subprocess
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.core.config.run_config import make_config, to_plain
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError
from harness.explain.advise import accuracy
from harness.explain.advise.options import AdviseOptions
from harness.explain.advise.subject import open_job
from harness.explain.subjects import subjects
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.models.network.files import of_onnx
from harness.models.network.network import difference
from harness.models.precision import onnx as precision_onnx
from harness.models.precision.made import make
from harness.models.precision.samples import SAMPLES, digest, quantisation_samples
from harness.models.precision.ways import PRECISIONS, way
from harness.types import BackendSetup, DatasetSetup, HasCalibration

DIGITS = MODELS_DIR / "digits.onnx"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def request(precision: str, **values: Any) -> dict[str, Any]:
    config = to_plain(make_config({"scenario": "offline", **values.pop("config", {})}))
    given = {"config": config, "format": "onnx", "precision": precision}
    return {**given, "synthetic": False, "calibration_dir": None, **values}


def int8_of(model: Path) -> dict[str, Any]:
    """Returns the variant that `make` derives from a bare file."""
    return make(request("int8", config={"model": str(model)}, synthetic=True))


def top1(path: Path) -> float:
    """Returns the accuracy in percent on the 500 held-out digits."""
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
    # All products use integer kernels, and none uses a float kernel.
    assert {"QLinearConv", "QGemm"} <= set(made["kernels"])
    assert not {"Conv", "Gemm"} & set(made["kernels"])
    assert "200 samples of 'digits, training images', none of them scored" in made["about"]
    assert difference(of_onnx(DIGITS), of_onnx(path)) == ""
    for backend in ("ort", "openvino"):
        if registry.BACKENDS[backend].installed:
            setup = BackendSetup(model=path, model_name="digits")
            with registry.load("backend", backend)(setup) as loaded:
                # Bug: ort reported float32, the type of the model's input.
                assert loaded.describe()["precision"] == "int8"
    stamp = path.stat().st_mtime_ns
    assert make(request("int8")) == made
    # The file is unchanged, because the result is cached by its source.
    assert path.stat().st_mtime_ns == stamp
    path.write_bytes(b"another")
    make(request("int8"))
    # The file is complete again, because a changed file is converted again.
    assert path.stat().st_size > 1000


def test_fp16_file_is_stored_in_float16_and_keeps_its_score() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnx")
    made = make(request("fp16"))
    assert made["about"].startswith("stored")
    assert abs(top1(Path(made["file"])) - 99.2) <= 0.5
    assert of_onnx(Path(made["file"])).types == ("float16",)


def test_onnx_runtime_has_no_bfloat16_kernels_as_documented() -> None:
    """If ONNX Runtime adds these kernels, `way` must change."""
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
    here = (name for name in registry.BACKENDS if name not in registry.REMOTE_BACKENDS)
    for backend in (*here, "mine.py:Mine"):
        assert not way(backend, "fp32").absent
        for precision in PRECISIONS[1:]:
            found = way(backend, precision)
            assert bool(found.absent) != bool(found.options or found.file)


def test_quantisation_samples_are_real_and_never_scored() -> None:
    scored = DigitsDataset(DatasetSetup())
    assert isinstance(scored, HasCalibration)
    model, config = load_model("digits"), make_config({"scenario": "offline"})
    found = quantisation_samples(config, model, model.inputs, 8, None, synthetic=False)
    used = {row.tobytes() for feed in found.feeds for row in feed["image"]}
    scored.load(range(500))
    assert not used & {row.tobytes() for row in scored.batch(range(500)).inputs["image"]}
    assert len(used) == SAMPLES
    assert all(len(feed["image"]) == 8 for feed in found.feeds)
    noise = quantisation_samples(config, model, model.inputs, 8, None, synthetic=True)
    assert "seeded noise" in noise.about
    again = quantisation_samples(config, model, model.inputs, 8, None, synthetic=True)
    assert digest(noise.feeds) == digest(again.feeds)  # checks requirement BO8


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
    found = quantisation_samples(config, model, model.inputs, 2, other, synthetic=False)
    values = sorted(float(row[0, 0, 0]) for feed in found.feeds for row in feed["image"])
    assert set(values) == {10.0, 11.0, 12.0, 13.0, 14.0}
    assert found.about.startswith("5 samples of ")
    assert "(5 scored ones were left out)" in found.about
    with pytest.raises(ConfigError, match="are also scored: name different"):
        quantisation_samples(config, model, model.inputs, 2, same, synthetic=False)
    with pytest.raises(ConfigError, match="pass such samples with --calibration-dir"):
        quantisation_samples(config, model, model.inputs, 2, None, synthetic=False)


def old_file(path: Path, opset: int) -> Path:
    """Writes the digits model with an older opset."""
    model = onnx_or_skip().load(DIGITS)
    del model.opset_import[:]
    model.opset_import.append(onnx_or_skip().helper.make_opsetid("", opset))
    onnx_or_skip().save(model, path)
    return path


def onnx_or_skip() -> Any:
    pytest.importorskip("onnxruntime")
    return pytest.importorskip("onnx")


def test_model_of_an_old_opset_is_quantised_per_channel_too(tmp_path: Path) -> None:
    made = int8_of(old_file(tmp_path / "old.onnx", 11))
    assert made["about"].startswith("QDQ, weights int8 per channel, ")
    assert made["kernels"]["QLinearConv"] == 2


def test_model_whose_opset_cannot_be_raised_is_quantised_per_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx_or_skip().version_converter, "convert_version", refuse)
    made = int8_of(old_file(tmp_path / "old.onnx", 11))
    assert made["about"].startswith("QDQ, weights int8 per tensor, ")
    assert made["kernels"]["QLinearConv"] == 2


def advised(model: str, tmp_path: Path, samples: int = 50) -> Mapping[str, Any]:
    """Returns the int8 section of `advise`, without the measured speed."""
    values = {"backend": "ort", "model": model}
    with ExitStack() as stack:
        (subject,) = subjects(values, stack)
        options = AdviseOptions(vary=("precision",), samples=samples, quiet=True)
        found, _ = accuracy.int8(open_job(options, subject, tmp_path, tmp_path))
    return found


def test_advise_and_sweep_make_the_same_int8_file(tmp_path: Path) -> None:
    """Bug: the two verbs used different recipes, which led to two accuracies under one name."""
    onnx_or_skip()
    found = advised("digits", tmp_path)
    assert found["sha256"] == make(request("int8"))["sha256"]
    assert found["about"] == make(request("int8"))["about"]
    noise = advised(str(DIGITS), tmp_path)  # a bare file without data is converted with noise
    bare = request("int8", config={"model": str(DIGITS)}, synthetic=True)
    assert noise["sha256"] == make(bare)["sha256"] != found["sha256"]


def test_softmax_stays_in_float_for_both(tmp_path: Path) -> None:
    onnx = onnx_or_skip()
    model = onnx.load(DIGITS)
    ends = model.graph.output[0]
    model.graph.node.append(onnx.helper.make_node("Softmax", [ends.name], ["shares"]))
    ends.name = "shares"
    onnx.save(model, tmp_path / "softmax.onnx")
    made = int8_of(tmp_path / "softmax.onnx")
    assert made["kernels"]["Softmax"] == 1
    assert "QLinearSoftmax" not in made["kernels"]
    assert advised(str(tmp_path / "softmax.onnx"), tmp_path)["sha256"] == made["sha256"]


def test_a_quantised_file_is_not_quantised_again(tmp_path: Path) -> None:
    onnx_or_skip()
    made = make(request("int8"))["file"]
    found = advised(made, tmp_path)
    assert found["failed"].startswith("is already quantised (")
    assert found["quantised"]


def test_quantisation_on_scored_samples_is_reported(tmp_path: Path) -> None:
    write_npz(tmp_path / "data.npz", 0, 10)
    model = load_model("digits")
    config = make_config(
        {"scenario": "offline", "dataset": "npz", "data_dir": tmp_path / "data.npz"}
    )
    given = (config, model, model.inputs, 2, None)
    some = quantisation_samples(*given, synthetic=False, scored=range(0, 10, 2))
    assert (some.total, some.are_scored) == (5, False)
    assert "none of them scored" in some.about
    values = {float(row[0, 0, 0]) for feed in some.feeds for row in feed["image"]}
    assert values == {1.0, 3.0, 5.0, 7.0, 9.0}
    every = quantisation_samples(*given, synthetic=False, scored=range(10))
    assert (every.total, every.are_scored) == (10, True)
    assert "which are also scored" in every.about


def test_a_users_own_int8_file_is_a_cell_of_int8(tmp_path: Path) -> None:
    """Bug: the file was refused, or its integers were converted again."""
    onnx_or_skip()
    own = Path(shutil.copy(make(request("int8"))["file"], tmp_path / "own.onnx"))
    found = int8_of(own)
    assert found["file"] == str(own)
    assert found["about"] == "the model's own file, own.onnx, which is quantised already"
    assert found["sha256"] == found["source_sha256"]
    with pytest.raises(ConfigError, match=r"is quantised already \(.*name its float32 original"):
        precision_onnx.check("int8", own)
    assert precision_onnx.already_quantised(DIGITS) == ""


def test_missing_module_of_a_precision_is_found_without_importing_it() -> None:
    """Importing PyTorch takes seconds and hundreds of megabytes, too much for a check before a sweep."""
    code = (
        "import sys; from harness.models.precision.made import MAKERS\n"
        "from harness.errors import PluginUnavailable\n"
        "for maker in MAKERS.values():\n"
        "    try: maker.require('int8')\n"
        "    except PluginUnavailable: pass\n"
        "print([m for m in ('torch', 'tensorflow', 'onnx', 'onnxruntime') if m in sys.modules])"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
