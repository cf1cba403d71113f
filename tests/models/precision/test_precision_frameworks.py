"""Variants for LiteRT, TensorFlow and PyTorch are made from the stored files, and score like fp32."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.core.child import call
from harness.core.config.run_config import make_config, to_plain
from harness.core.extras import how_to_install
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError, PluginUnavailable
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.models.precision import tflite, torchscript
from harness.models.precision.made import MAKERS, make
from harness.models.precision.ways import way
from harness.types import BackendSetup, Batch, DatasetSetup


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def request(form: str, precision: str, model: str = "digits") -> dict[str, Any]:
    config = to_plain(make_config({"scenario": "offline", "model": model}))
    given = {"config": config, "format": form, "precision": precision}
    return {**given, "synthetic": False, "calibration_dir": None}


def opened(backend: str, path: Path, **options: str) -> Any:
    inputs = load_model("digits").inputs
    setup = BackendSetup(model=path, model_name="digits", inputs=inputs, options=options)
    return registry.load("backend", backend)(setup)


def top1(backend: Any) -> float:
    """Returns the accuracy in percent on the 500 held-out digits."""
    dataset = DigitsDataset(DatasetSetup())
    dataset.load(range(len(dataset)))
    with backend:
        found = np.asarray(backend.infer(dataset.batch(range(len(dataset)))))
    labels = np.array([dataset.label(i) for i in range(len(dataset))])
    return float((found.argmax(axis=1) == labels).mean() * 100)


def test_every_file_that_is_made_has_a_maker() -> None:
    files = {way(b, p).file for b in registry.BACKENDS for p in ("int8", "fp16", "bf16")}
    assert files - {""} == set(MAKERS)
    for backend in ("tensorflow", "litert", "torch"):  # every omitted precision has a stated reason
        for precision in ("int8", "fp16", "bf16"):
            assert "no way to" not in way(backend, precision).absent


def test_a_model_without_the_file_to_begin_with_is_a_line() -> None:
    pytest.importorskip("onnx")
    told = (
        r"^int8 is made from a file in the format savedmodel, but model 'light-squeezenet' has none"
    )
    with pytest.raises(ConfigError, match=told):
        make(request("tflite", "int8", "light/squeezenet"))


def test_a_file_of_another_kind_is_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for maker in (tflite, torchscript):
        monkeypatch.setattr(maker, "find_spec", lambda _name: None)
        with pytest.raises(PluginUnavailable, match=re.escape(how_to_install(maker.BACKEND))):
            maker.require("int8")
        monkeypatch.setattr(maker, "find_spec", lambda _name: True)
    with pytest.raises(ConfigError, match="made from a SavedModel, which is a folder"):
        tflite.check("fp16", tmp_path / "net.tflite")
    with pytest.raises(ConfigError, match=r"a \.pt2: export the model"):
        torchscript.check("int8", tmp_path / "net.pt2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "precision", "backend"),
    [("tflite", "int8", "litert"), ("tflite", "fp16", "litert"), ("torchscript", "int8", "torch")],
)
def test_converted_model_scores_like_fp32(
    form: str, precision: str, backend: str, tmp_path: Path
) -> None:
    pytest.importorskip({"litert": "ai_edge_litert", "torch": "torch"}[backend])
    if form == "tflite":
        pytest.importorskip("tensorflow")
    made = call("harness.models.precision.made:make", request(form, precision), tmp_path / "log")
    path = Path(made["file"])
    source = MODELS_DIR / {"litert": "digits.tflite", "torch": "digits.pt"}[backend]
    # The new file is half or a quarter as large as the original.
    assert path.stat().st_size < 0.6 * source.stat().st_size
    loaded = opened(backend, path)
    assert abs(top1(loaded) - 99.2) <= 0.5
    with loaded:
        assert loaded.describe()["precision"] == {"int8": "int8", "fp16": "float16"}[precision]
    if precision == "int8":
        assert "200 samples of 'digits, training images', none of them scored" in made["about"]
        assert " in float32" not in made["about"]
    if form == "torchscript":
        assert made["kernels"]["quantized::conv2d_relu"] == 2
        assert not {"aten::_convolution", "aten::linear"} & set(made["kernels"])


@pytest.mark.slow
def test_tensorflow_computes_in_bfloat16_or_refuses_on_this_cpu(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    target = "tests.models.precision.test_precision_frameworks:bf16_beside_fp32"
    found = call(target, {}, tmp_path / "log")
    if "refused" in found:
        assert found["refused"] == (
            "--backend-option precision=bf16: TensorFlow computes in float32 on this CPU: drop the option"
        )
    else:
        assert found["precision"] == "bfloat16"
        assert 0 < found["apart"] < 1
    assert "drop compile=off" in found["eager"]


def bf16_beside_fp32(_given: object) -> dict[str, Any]:
    """Runs in a separate process, because the rewriter affects the whole process."""
    images = np.random.default_rng(0).random((4, 1, 8, 8), np.float32)
    answers: dict[str, Any] = {}
    savedmodel = MODELS_DIR / "digits_savedmodel"
    try:
        with opened("tensorflow", MODELS_DIR / "digits.keras", precision="bf16", compile="off"):
            pass
    except ConfigError as e:
        answers["eager"] = str(e)
    batch = Batch(4, {"image": images})
    with opened("tensorflow", savedmodel) as backend:
        whole = backend.infer(batch)
    try:
        with opened("tensorflow", savedmodel, precision="bf16") as backend:
            apart = float(np.abs(np.asarray(backend.infer(batch)) - whole).max())
            return {**answers, "apart": apart, "precision": backend.describe()["precision"]}
    except ConfigError as e:
        return {**answers, "refused": str(e)}
