"""`profile` and `advise` on files of other people's tools: nothing crashes, no work is lost or counted twice."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.errors import ConfigError
from harness.models.graph import onnx_file
from harness.models.graph.wiring import read_wiring
from tests.builders import foreign_nets as nets

ROOT = Path(__file__).parent.parent


def run(*words: str | Path) -> str:
    command = [sys.executable, "-m", "harness", *map(str, words)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def layers_profiled(model: Path, out: Path, backend: str = "ort") -> str:
    shared = ("--levels", "layer", "--runs", "3", "--threads", "1", "--no-report", "--out", out)
    return run("profile", "--model", model, "--backend", backend, *shared)


@pytest.mark.parametrize("external", [False, True])
def test_metadata_of_nodes_is_no_text_and_is_passed_over(tmp_path: Path, external: bool) -> None:
    path = nets.with_metadata(tmp_path / "net.onnx", external=external)
    wiring = read_wiring(path)
    assert [node.op_type for node in wiring.nodes] == ["Conv", "Relu", "Conv", "Add", "Relu"]
    assert wiring.inputs == ("x",)
    assert wiring.initializers == {"w0", "w1"}


def test_a_broken_file_is_no_onnx_model_wherever_it_is_cut(tmp_path: Path) -> None:
    """BufferError, of a map closed under its views, hid the cause."""
    whole = nets.with_metadata(tmp_path / "net.onnx").read_bytes()
    path = tmp_path / "cut.onnx"
    refused = 0
    for size in range(0, len(whole), 101):
        path.write_bytes(whole[:size])
        try:
            read_wiring(path)  # cut between two fields it is a whole message
        except ConfigError as e:
            assert str(e).startswith(f"{path} is no ONNX model")  # noqa: PT017
            refused += 1
    assert refused > 0.9 * len(range(0, len(whole), 101))


def test_a_name_that_is_no_text_is_no_onnx_model(tmp_path: Path) -> None:
    whole = nets.with_metadata(tmp_path / "net.onnx").read_bytes()
    (tmp_path / "net.onnx").write_bytes(whole.replace(b"Conv0", b"Con\xff0"))
    with pytest.raises(ConfigError, match=r"^.*net\.onnx is no ONNX model: 'utf-8' codec .*$"):
        read_wiring(tmp_path / "net.onnx")


@pytest.mark.parametrize("backend", ["ort", pytest.param("openvino", marks=pytest.mark.slow)])
def test_a_file_as_torch_writes_it_is_profiled(tmp_path: Path, backend: str) -> None:
    module = {"ort": "onnxruntime"}.get(backend, backend)
    pytest.importorskip(module)
    path = nets.with_metadata(tmp_path / "net.onnx", external=True)
    text = layers_profiled(path, tmp_path / "p", backend)
    assert "of 5 nodes 5 are mapped, 0 eliminated" in text


@pytest.mark.slow
@pytest.mark.skipif(not find_spec("torch") or not find_spec("onnxscript"), reason="no exporter")
@pytest.mark.parametrize("backend", ["ort", "openvino"])
def test_a_file_of_torchs_newest_exporter_is_profiled(tmp_path: Path, backend: str) -> None:
    """Exported in a process of its own, as frameworks that are loaded beside each other crash."""
    path = tmp_path / "net.onnx"
    code = "import pathlib, sys; from tests.builders.foreign_nets import from_torch; "
    code += "from_torch(pathlib.Path(sys.argv[1]))"
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert any(node.metadata_props for node in onnx_file.read(path).proto.graph.node)
    text = layers_profiled(path, tmp_path / "p", backend)
    nodes = len(read_wiring(path).nodes)
    assert f"of {nodes} nodes " in text
    assert "no FLOPs" not in text
