"""Trained models from their publishers' packages complete VALID runs in every scenario, and give equal answers on every
runtime.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.models.manifest.lookup import load_model
from harness.results.agreement import agreement
from harness.types import Answer, DatasetSetup, Score
from tests.builders.support import SCENARIOS
from tests.faults.command import Ended, result, start

MADE_FROM_A_SEED = ("basic-pitch", "ppocr-rec")
"""Models whose datasets are generated from a seed."""

MODELS = (*MADE_FROM_A_SEED, "magika", "silero-vad")
RUNTIMES = [
    ("basic-pitch", "openvino", "openvino"),
    ("basic-pitch", "litert", "ai_edge_litert"),
    ("basic-pitch", "tensorflow", "tensorflow"),
    ("ppocr-rec", "openvino", "openvino"),
    ("ppocr-rec", "tract", "tract"),
    ("magika", "openvino", "openvino"),
    ("silero-vad", "openvino", "openvino"),
    ("silero-vad", "tract", "tract"),
]

LIMIT_S = 1700
"""Time limit for one run. Multi-stream issues 5,296 samples, which takes a long time on two busy cores."""


@pytest.mark.parametrize("name", MADE_FROM_A_SEED)
def test_the_dataset_of_the_manifest_fits_model_and_metric(name: str) -> None:
    """A perfect model, which returns the labels, scores 100 %."""
    model = load_model(name)
    assert model.manifest is not None
    assert model.accuracy is not None
    setup = DatasetSetup(inputs=model.inputs, steps=model.steps, options={"count": "5"})
    data = registry.load("dataset", model.dataset)(setup)
    data.load(range(5))
    (spec,) = model.inputs
    assert data.batch(range(5)).inputs[spec.name].shape[1:] == spec.shape[1:]
    assert scored(name, data).value == 100


def scored(name: str, data: Any) -> Score:
    """Returns the score of answers that equal the labels."""
    model = load_model(name)
    assert model.accuracy is not None
    symbols = model.accuracy.symbols
    labels: dict[int, Any] = {i: data.label(i) for i in range(len(data))}
    if symbols:
        rows = {
            i: np.array([symbols.index(c, 1) for c in text], np.int64) for i, text in labels.items()
        }
        labels = {i: {"text": text, "symbols": symbols} for i, text in labels.items()}
    else:
        rows = {i: np.array(notes, np.float32) for i, notes in labels.items()}
    dtype = "int64" if symbols else "float32"
    metric = registry.load("metric", model.accuracy.metric)(dtype)
    score: Score = metric.score([Answer(i, row.tobytes()) for i, row in rows.items()], labels)
    return score


def test_symbols_of_the_text_recogniser_cover_its_classes() -> None:
    accuracy = load_model("ppocr-rec").accuracy
    assert accuracy is not None
    assert len(accuracy.symbols) == 18_710
    assert accuracy.symbols[1:4] == ("!", '"', "#")
    assert (accuracy.symbols[33], accuracy.symbols[-1]) == ("0", " ")
    assert len(set(accuracy.symbols[1:])) == 18_709


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a cache into which the packages are downloaded once."""
    return tmp_path_factory.mktemp("cache")


def measured(cache: Path, out: Path, *words: str) -> Ended:
    env = {"XDG_CACHE_HOME": str(cache)}
    process = start(*words, "--out", str(out), "--max-batch", "2", "--quiet", env=env)
    printed, said = process.communicate(timeout=LIMIT_S)
    return Ended(process.returncode, printed, said)


@pytest.mark.slow
@pytest.mark.limit_s(2 * LIMIT_S)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_trained_model_is_valid_and_reaches_its_target(
    name: str, scenario: str, cache: Path, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime")
    rate = ("--slo", "p90=60s") if scenario == "server" else ()
    words = ("--scenario", scenario, "--model", name, "--backend", "ort", "--duration", "1s", *rate)
    done = measured(cache, tmp_path / "run", *words)
    found = result(tmp_path / "run")
    assert (found["verdict"], done.status) == ("VALID", 0), (found["reasons"], done.said)
    accuracy = load_model(name).accuracy
    assert accuracy is not None
    assert found["accuracy"]["metric"] == accuracy.metric
    assert accuracy.target <= found["accuracy"]["value"] < 100


@pytest.mark.slow
@pytest.mark.limit_s(2 * LIMIT_S)
@pytest.mark.parametrize(("name", "backend", "module"), RUNTIMES)
def test_runtimes_answer_alike(
    name: str, backend: str, module: str, cache: Path, tmp_path: Path
) -> None:
    if find_spec("onnxruntime") is None or find_spec(module) is None:
        pytest.skip(f"needs onnxruntime and {module}")
    words = ("--scenario", "offline", "--mode", "accuracy", "--model", name)
    for one in ("ort", backend):
        done = measured(cache, tmp_path / one, *words, "--backend", one)
        assert done.status == 0, done.said
    found = agreement(tmp_path / "ort", tmp_path / backend)
    assert found is not None
    assert found.samples >= 40
    assert found.alike >= 0.98
    scores = [result(tmp_path / one)["accuracy"]["value"] for one in ("ort", backend)]
    assert scores[0] == pytest.approx(scores[1], abs=1.0)
