"""One recurrent model in the format of each framework that supports states: `init` finds the states, and the answers
agree.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from harness.core import registry
from tests.builders.models import recurrent_nets as nets
from tests.builders.models.converted import mnn_file
from tests.faults.command import ROOT

ANSWERS = """
import sys
import numpy as np
from contextlib import ExitStack
from pathlib import Path
from harness.core.config.run_config import RunConfig
from harness.loadgen.plan import InstanceGroup
from harness.models.manifest.lookup import load_model
from harness.models.opened.loading import model_file, open_backends
from harness.models.opened.template import manifest_of
from harness.types import Batch
path, backend, samples, out = Path(sys.argv[1]), sys.argv[2], np.load(sys.argv[3]), sys.argv[4]
manifest = path.parent / f"{backend}.yaml"
manifest.write_text(manifest_of(path, manifest, {}, backend))
model = load_model(str(manifest))
config = RunConfig(scenario="offline", backend=backend, model=str(manifest))
with ExitStack() as stack:
    group = InstanceGroup(1, 1, len(samples))
    (opened,) = open_backends(config, model, model_file(config, model), group, stack)
    (name,) = (spec.name for spec in opened.signature())
    np.save(out, opened.infer(Batch(len(samples), {name: samples})))
    assert opened.describe()["states"], manifest.read_text()
"""
"""Runs in a separate process, because a framework keeps its threads until the process ends."""

OF_TORCH = """
import sys
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.cell = torch.nn.GRUCell(6, 5)

    def forward(self, x, hidden):
        hidden = self.cell(x, hidden)
        return {"y": hidden.sum(dim=1, keepdim=True), "next_hidden": hidden}

batch = torch.export.Dim("batch", max=64)
example = torch.zeros(2, 6), torch.zeros(2, 5)
shapes = {"x": {0: batch}, "hidden": {0: batch}}
torch.export.save(torch.export.export(Net().eval(), example, dynamic_shapes=shapes), sys.argv[1])
"""

OF_TENSORFLOW = """
import sys
import tensorflow as tf

class Net(tf.Module):
    def __init__(self):
        self.w = tf.Variable(tf.random.stateless_normal((6, 5), (1, 2)))
        self.r = tf.Variable(tf.random.stateless_normal((5, 5), (3, 4)))

    @tf.function(input_signature=[tf.TensorSpec((None, 6), name="x"), tf.TensorSpec((None, 5), name="state_in")])
    def step(self, x, state_in):
        state = tf.tanh(x @ self.w + state_in @ self.r)
        return {"y": tf.reduce_sum(state, 1, keepdims=True), "state_out": state}

net = Net()
tf.saved_model.save(net, sys.argv[1], signatures=net.step)
if len(sys.argv) > 2:
    converter = tf.lite.TFLiteConverter.from_saved_model(sys.argv[1])
    open(sys.argv[2], "wb").write(converter.convert())
"""


def python(code: str, *words: str | Path) -> None:
    command = [sys.executable, "-c", code, *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


def answered(path: Path, backend: str, samples: Any) -> Any:
    if not registry.BACKENDS[backend].installed:
        pytest.skip(f"{backend} is not installed")
    files = path.parent / "samples.npy", path.parent / f"{backend}.npy"
    np.save(files[0], samples)
    python(ANSWERS, path, backend, *files)
    return np.load(files[1])


def drawn(count: int) -> Any:
    return np.random.default_rng(2).normal(size=(count, 4, 6)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_openvino_answers_as_onnx_runtime(count: int, tmp_path: Path) -> None:
    path, samples = nets.lstm(tmp_path / "m.onnx"), drawn(count)
    ours = answered(path, "openvino", samples)
    assert ours.shape == (count, 4, nets.ANSWERS)
    np.testing.assert_allclose(ours, answered(path, "ort", samples), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 3])
def test_tract_answers_as_onnx_runtime(count: int, tmp_path: Path) -> None:
    path, samples = nets.lstm(tmp_path / "m.onnx"), drawn(count)
    ours = answered(path, "tract", samples)
    assert ours.shape == (count, 4, nets.ANSWERS)
    np.testing.assert_allclose(ours, answered(path, "ort", samples), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_mnn_answers_as_onnx_runtime(tmp_path: Path) -> None:
    """MNN's converter writes 1 for the frame's open batch."""
    if not registry.BACKENDS["mnn"].installed:
        pytest.skip("mnn is not installed")
    path, samples = nets.lstm(tmp_path / "m.onnx", batch=1), drawn(1)
    ours = answered(mnn_file(path, tmp_path / "m.mnn"), "mnn", samples)
    np.testing.assert_allclose(ours, answered(path, "ort", samples), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_an_exported_program_has_states(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path, samples = tmp_path / "m.pt2", drawn(3)
    python(OF_TORCH, path)
    ours = answered(path, "torch", samples)
    assert ours.shape == (3, 4, 1)
    alone = np.concatenate([answered(path, "torch", one[np.newaxis]) for one in samples])
    np.testing.assert_allclose(ours, alone, rtol=1e-4, atol=1e-6)
    assert not np.allclose(ours[:, 0], ours[:, 1])


@pytest.mark.slow
def test_saved_model_and_lite_file_answer_alike(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow")
    folder, lite, samples = tmp_path / "saved", tmp_path / "m.tflite", drawn(1)
    python(OF_TENSORFLOW, folder, lite)
    ours = answered(folder, "tensorflow", samples)
    assert ours.shape == (1, 4, 1)
    theirs = answered(lite, "litert", samples)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
