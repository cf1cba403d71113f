"""The topologies of the onnx package accept any batch, return plausible numbers, and are marked as examples everywhere."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from harness.cli.main import main
from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable
from harness.models.graph import onnx_file
from harness.models.graph.flops import graph_costs
from harness.models.made import onnx_light
from harness.models.manifest.lookup import load_model, named_models
from tests.builders.refusals import refused
from tests.faults.command import run_here

pytestmark = pytest.mark.usefixtures("in_cache")

FAST = ("shufflenet", "squeezenet")
PRODUCTS = ("Conv", "Gemm", "MatMul")
EACH = [n if n in FAST else pytest.param(n, marks=pytest.mark.slow) for n in onnx_light.LIGHT]


@pytest.mark.parametrize("name", EACH)
def test_any_batch_gives_finite_numbers_and_the_same_rows(name: str) -> None:
    ort = pytest.importorskip("onnxruntime")
    session = ort.InferenceSession(str(onnx_light.make(name)), providers=["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert (given.name, given.shape) == (onnx_light.LIGHT[name].input, ["batch", 3, 224, 224])
    images = np.random.default_rng(1).standard_normal((3, 3, 224, 224), dtype=np.float32)
    (three,) = session.run([onnx_light.LIGHT[name].output], {given.name: images})
    (one,) = session.run(None, {given.name: images[1:2]})
    assert three.shape[:2] == (3, 1000)
    assert np.isfinite(three).all()
    assert np.abs(three).min() >= np.finfo(np.float32).tiny, "denormals"
    assert len(np.unique(three)) > 1000, "random weights give different answers"
    np.testing.assert_allclose(three[1], one[0], rtol=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_a_run_is_valid_and_marked(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    mode = "performance" if name == "shufflenet" else "both"
    words = ["--scenario", "offline", "--model", f"light/{name}", "--queries", "4", "--mode", mode]
    assert main([*words, "--max-batch", "2", "--instances", "1", "--quiet", "--out", str(out)]) == 0
    result = json.loads((out / "result.json").read_text())
    assert result["model"] == f"light-{name}"
    left_out = "" if mode == "performance" else ": no accuracy run, and no answers compared"
    assert result["accuracy"] == {"value": None, "reason": f"random weights{left_out}"}
    assert "random weights" in result["not_for_submission"]
    assert "model-not-pinned" not in [d["code"] for d in result["doubts"]]
    printed = "accuracy    not measured: random weights" in capsys.readouterr().out
    assert printed == (mode == "both")
    assert main(["check", str(out)]) == 0


def test_accuracy_run_on_random_weights_is_refused(tmp_path: Path) -> None:
    words = ["--scenario", "offline", "--model", "light/squeezenet", "--mode", "accuracy"]
    lines = refused(*words, "--quiet", "--out", tmp_path / "run")
    told = "model 'light-squeezenet' has random weights, whose answers have no accuracy"
    assert told in "\n".join(lines)
    assert not list(tmp_path.glob("run*"))


def test_a_file_is_written_once_and_whole() -> None:
    path = onnx_light.make("shufflenet")
    written_ns = path.stat().st_mtime_ns
    assert onnx_light.make("shufflenet") == path
    assert path.stat().st_mtime_ns == written_ns
    said: list[str] = []
    model = load_model("light/shufflenet")
    model.obtain(("onnx",), said.append)
    assert (said, model.path(("onnx",))) == ([], path)
    assert list(path.parent.glob("*.partial")) == []


def test_weights_are_the_same_every_time(tmp_path: Path) -> None:
    first = onnx_light.make("shufflenet")
    again = tmp_path / "again.onnx"
    spec = importlib.util.find_spec("onnx")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "backend/test/data/light"
    onnx_light.write(folder / "light_shufflenet.onnx", again)
    assert again.read_bytes() == first.read_bytes()


def test_command_names_the_missing_onnx_package(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "onnx" else found(name, *a)
    )
    with pytest.raises(PluginUnavailable):
        onnx_light.make("vgg19")
    told = f"harness: model 'light/vgg19' needs the module 'onnx': {how_to_install('onnx')}\n"
    ended = run_here("--scenario", "offline", "--model", "light/vgg19")
    assert (ended.status, ended.said) == (3, told)


def test_missing_topology_is_reported_in_one_line() -> None:
    assert refused("--scenario", "offline", "--model", "light/resnet51") == [
        "no model named 'light/resnet51': did you mean 'light/resnet50'?"
    ]


def test_list_shows_each_light_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    shown = capsys.readouterr().out
    for name in onnx_light.LIGHT:
        assert f"light/{name} " in shown
        assert f"light/{name}" in named_models()
    assert shown.count("with random weights, from the onnx package") == len(onnx_light.LIGHT)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["densenet121", "resnet50", "shufflenet", "squeezenet"])
def test_multiplications_are_those_of_onnx_tool(name: str) -> None:
    """The source also counts the addition of a bias as one multiplication per output element."""
    onnx_tool = pytest.importorskip("onnx_tool")
    path = onnx_light.make(name)
    graph = onnx_file.read(path)
    ours = 0
    for node, cost in zip(graph.nodes, graph_costs(graph), strict=True):
        if node.op_type in PRODUCTS:
            assert cost.macs is not None
            has_bias = len(node.inputs) == 3
            ours += cost.macs + has_bias * (graph.tensors[node.outputs[0]].elements or 0)
    model = onnx_tool.Model(str(path), {"verbose": False}).graph
    model.shape_infer({onnx_light.LIGHT[name].input: np.zeros((1, 3, 224, 224), np.float32)})
    model.profile()
    nodes = model.nodemap.values()
    assert sum(node.macs[0] for node in nodes if node.op_type in PRODUCTS) == ours
