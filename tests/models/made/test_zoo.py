"""The networks built by the harness have known sizes, return plausible numbers, and work like any model."""

from pathlib import Path

import numpy as np
import pytest

from harness.cli.main import main
from harness.models.graph.graph import Graph
from harness.models.graph.onnx_file import read
from harness.models.made import zoo
from harness.models.manifest.lookup import is_path, load_model, named_models
from tests.builders.refusals import refused

ort = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.usefixtures("in_cache")

PUBLISHED = {
    "resnet50_v1": (3.858, 25_610_152),
    "resnet50_v1.5": (4.089, 25_610_152),
    "mobilenet_v1": (0.5687, 4_253_864),
    "mobilenet_v2": (0.3008, 3_538_984),
    "vgg16": (15.47, 138_357_544),
}
"""Published values: MACs in units of 10^9, and the number of parameters including batch normalisation's moving
statistics.
"""

FAST = ("mobilenet_v1", "mobilenet_v2")
EACH = [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in zoo.ZOO]


def giga_macs(graph: Graph) -> float:
    """Returns the MACs of convolutions and matrix products for one image, in 10^9."""
    total = 0
    for node in graph.nodes:
        if node.op_type in ("Conv", "Gemm"):
            weight, out = graph.tensors[node.inputs[1]], graph.tensors[node.outputs[0]]
            is_conv = node.op_type == "Conv"
            positions = int(np.prod([n or 0 for n in out.shape[2:]])) if is_conv else 1
            total += positions * (weight.elements or 0)
    return total / 1e9


@pytest.mark.parametrize("name", EACH)
def test_networks_have_the_published_size_and_finite_outputs(name: str) -> None:
    path = zoo.make(name)
    graph = read(path)
    macs, parameters = PUBLISHED[name]
    assert giga_macs(graph) == pytest.approx(macs, rel=1e-3)
    scalars = sum(1 for c in graph.constants.values() if c.tensor.shape == ())
    elements = sum(c.tensor.elements or 0 for c in graph.constants.values()) - scalars
    assert elements == parameters
    session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    image = np.random.default_rng(1).standard_normal((2, 3, 224, 224), dtype=np.float32)
    (logits,) = session.run(None, {"image": image})
    assert logits.shape == (2, 1000)
    assert np.isfinite(logits).all()
    assert 0.1 < logits.std() < 100
    assert np.abs(logits[0] - logits[1]).mean() > 1e-3


@pytest.mark.slow
def test_resnet50_v1_has_as_many_unique_layers_as_published() -> None:
    graph = read(zoo.make("resnet50_v1"))
    assert len(graph.layers) == 175
    assert 46 <= len(graph.unique) <= 48


def test_zoo_file_has_the_same_bytes_every_time(tmp_path: Path) -> None:
    zoo.write("mobilenet_v2", tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == zoo.make("mobilenet_v2").read_bytes()


@pytest.mark.slow
def test_run_accepts_a_zoo_model_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--scenario", "offline", "--model", "zoo/mobilenet_v2", "--queries", "2", "--quiet"]
    words += ["--mode", "performance", "--no-metrics", "--no-report", "--max-batch", "1"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    assert main(["check", str(tmp_path / "run"), "--details"]) == 0
    assert "random weights" in capsys.readouterr().out


def test_zoo_names_are_listed_and_are_not_paths(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in zoo.ZOO:
        assert f"zoo/{name} " in shown
        assert f"zoo/{name}" in named_models()
        assert not is_path(f"zoo/{name}")
        assert load_model(f"zoo/{name}").has_random_weights
    assert is_path("zoo/mine.onnx")
    (line,) = refused("--scenario", "offline", "--model", "zoo/vgg17")
    assert "did you mean 'zoo/vgg16'?" in line
