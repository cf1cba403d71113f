"""Models that need more than their file: text inputs, several rows per sample, or outputs by name."""

import re
from pathlib import Path

import pytest

from harness.cli.explain import advise_options
from harness.cli.main import main
from harness.explain.advise.job import advise
from tests.builders.models import foreign_nets as nets
from tests.models.graph.test_foreign_nets import layers_profiled, run

WORDS = """
import numpy as np
from harness.types import Batch

class Words:
    def __init__(self, setup): pass
    def __len__(self): return 40
    def load(self, indices): pass
    def unload(self, indices): pass
    def batch(self, indices):
        words = [["good" if i % 2 else "bad"] for i in indices]
        return Batch(len(indices), {"words": np.array(words, dtype=object)})
    def label(self, index): return None
    def describe(self): return {"name": "words"}
"""
NEEDS_HOOK = (
    "the first dimension of each input and output must be the batch. If a model returns several "
    "rows per sample (detection heads, "
    "non-maximum suppression inside the model), a manifest with `batch_axis: none` for this output takes "
    "one sample at a time, and a manifest with the postprocessing step `hook` combines "
    "them into one answer: --model FILE.yaml, docs/manifest.md"
)


@pytest.fixture(autouse=True)
def _ort() -> None:
    pytest.importorskip("onnxruntime")


def refusal(capsys: pytest.CaptureFixture[str], *words: str | Path) -> str:
    assert main([*map(str, words)]) == 2
    return capsys.readouterr().err


def test_texts_are_refused_with_advice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = nets.with_strings(tmp_path / "net.onnx")
    shared = ("--scenario", "offline", "--duration", "1s", "--out", tmp_path / "out")
    error = refusal(capsys, *shared, "--model", path)
    assert error.splitlines()[-1] == (
        "harness: input 'words' is string, a type without synthetic data: pass "
        "--dataset FILE.py:CLASS, which returns strings as an array of objects"
    )


@pytest.mark.slow
def test_advice_in_the_refusal_of_texts_works(tmp_path: Path) -> None:
    path = nets.with_strings(tmp_path / "net.onnx")
    (tmp_path / "words.py").write_text(WORDS)
    dataset = ("--dataset", f"{tmp_path}/words.py:Words", "--no-report")
    levels = ("--levels", "model,layer", "--runs", "3", "--threads", "1")
    text = run("profile", "--model", path, *dataset, *levels, "--out", tmp_path / "p")
    assert "of 1 node, 1 mapped" in text


def test_pitfalls_of_a_text_model_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = nets.with_strings(tmp_path / "net.onnx")
    (tmp_path / "words.py").write_text(WORDS)
    error = refusal(capsys, "pitfalls", "--model", path, "--dataset", f"{tmp_path}/words.py:Words")
    assert error.splitlines()[-1] == (
        "harness: no input of the model is numeric: there is nothing to change"
    )


def test_several_rows_per_sample_are_refused_with_advice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = nets.detector(tmp_path / "net.onnx", rows=20)
    shared = ("--scenario", "single-stream", "--duration", "1s", "--out", tmp_path / "out")
    error = refusal(capsys, *shared, "--model", path)
    assert NEEDS_HOOK in error
    assert re.search(
        r"harness: the model returned 20 rows in the output '\w+' for 1 sample: ", error
    )
    skipped = [w for part in ("weights", "storage", "checks") for w in ("--skip", part)]
    with pytest.raises(
        Exception, match=r"^the model returned 640 rows for 32 samples: the first dim"
    ):
        advise(*advise_options(["--model", str(path), "--out", str(tmp_path / "a"), *skipped]))


@pytest.mark.slow
def test_the_layers_of_a_detector_are_profiled_without_a_manifest(tmp_path: Path) -> None:
    path = nets.detector(tmp_path / "net.onnx")
    assert "nodes, 5 mapped" in layers_profiled(path, tmp_path / "p")


MANIFEST = """
name: detector
version: "1"
description: candidates
licence: none
task: none
files: {onnx: {path: net.onnx, sha256: null}}
inputs: [{name: x, dtype: float32, shape: [batch, 16, 16, 16]}]
outputs: [{name: Reshape6, postprocess: [{hook: {file: hook.py, function: by_sample}}]}]
dataset: synthetic
"""
HOOK = """
def by_sample(outputs, indices):
    (rows,) = outputs.values()
    return rows.reshape(len(indices), -1)
"""


def test_advice_in_the_refusal_of_rows_works(tmp_path: Path) -> None:
    """A hook receives the outputs by name, as documented, even for a model with one output."""
    path = nets.detector(tmp_path / "net.onnx")
    (output,) = nets.onnx.load(path).graph.output
    (tmp_path / "model.yaml").write_text(MANIFEST.replace("Reshape6", output.name))
    (tmp_path / "hook.py").write_text(HOOK)
    words = ("--scenario", "offline", "--model", tmp_path / "model.yaml", "--duration", "1s")
    hook = ("--hook", tmp_path / "hook.py", "--no-report")
    text = run(*words, *hook, "--out", tmp_path / "out")
    assert "samples/s" in text
