"""A network has the same identity in every file format, and different networks have different identities."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.core.child import call
from harness.core.extras import how_to_install
from harness.errors import ConfigError, PluginUnavailable
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.models.network.files import of_onnx, of_openvino, onnx_macs
from harness.models.network.network import Structure, difference, of_shapes
from harness.models.network.tflite import _NetworkReader, of_tflite
from harness.search.grid.cells.cells import Cell
from harness.search.grid.view.view import strangers
from harness.types import BackendSetup, Batch, HasNetwork
from tests.stand_ins.fake_grid import row

DIGITS = MODELS_DIR / "digits.onnx"
MACS = 8 * 8 * 16 * 9 + 8 * 8 * 32 * 16 * 9 + 512 * 128 + 128 * 10
"""Two 3 x 3 convolutions to 16 and 32 channels, and two dense layers."""


def test_the_same_network_in_three_formats_is_the_same() -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("ai_edge_litert")
    onnx = of_onnx(DIGITS)._replace(macs=onnx_macs(DIGITS, {"image": (1, 1, 8, 8)}))
    ir = of_openvino(MODELS_DIR / "digits_openvino" / "digits.xml")
    tflite = of_tflite(MODELS_DIR / "digits.tflite")
    assert onnx == ir == tflite
    assert (len(onnx.weights), sum(onnx.weights), onnx.macs) == (4, 71_568, MACS)
    assert onnx_macs(DIGITS, {"image": (5, 1, 8, 8)}) == 5 * MACS


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "file", "option"),
    [
        ("tensorflow", "digits_savedmodel", "compile=on"),
        ("tensorflow", "digits.keras", "compile=on"),
        ("tensorflow", "digits.keras", "compile=off"),
        ("torch", "digits.pt", "compile=off"),
        ("torch", "digits.pt", "precision=bf16"),
    ],
)
def test_each_framework_reports_the_same_structure(
    backend: str, file: str, option: str, tmp_path: Path
) -> None:
    pytest.importorskip(backend)
    given = {"backend": backend, "file": file, "option": option}
    found = call("tests.search.grid.test_identity:network", given, tmp_path / "log")
    assert Structure.from_json(found) == of_tflite(MODELS_DIR / "digits.tflite")


def network(given: dict[str, str]) -> dict[str, Any]:
    """Runs in a separate process, because TensorFlow's threads belong to the process."""
    key, _, value = given["option"].partition("=")
    setup = BackendSetup(
        model=MODELS_DIR / given["file"],
        model_name="digits",
        inputs=load_model("digits").inputs,
        options={key: value},
    )
    with registry.load("backend", given["backend"])(setup) as backend:
        assert isinstance(backend, HasNetwork)
        images = np.zeros((2, 1, 8, 8), np.float32)
        weights, strides, macs = backend.network(Batch(2, {"image": images}))
    return of_shapes(weights, strides, (macs or 0) // 2)._asdict()


def test_other_weights_strides_or_sizes_are_another_network() -> None:
    net = Structure((16, 32), ("float32",), ((2, 2),), 1000)
    assert difference(net, net._replace(types=("int8",))) == ""
    assert "tensors differ in size" in difference(net, net._replace(weights=(16, 48)))
    strided = net._replace(strides=())
    assert difference(net, strided) == "strides of convolutions (), not ((2, 2),)"
    padded = net._replace(macs=1002)
    assert difference(net, padded) == "1,002 multiplications per sample, not 1,000 multiplications"
    # A difference of a thousandth is allowed, because the formats treat the edges of an image differently.
    assert difference(net, net._replace(macs=1001)) == ""
    for unknown in (net._replace(strides=None), net._replace(macs=None)):
        assert difference(net, unknown) == difference(unknown, net) == ""


def test_the_same_weights_in_other_tensors_are_the_same_network() -> None:
    """Some frameworks split the gates of an LSTM, and the groups of AlexNet's convolutions."""
    net = Structure((16, 32), ("float32",), (), 1000)
    split = net._replace(weights=(8, 8, 32))
    assert difference(net, split) == ""
    assert "tensors differ in size" in difference(net, split._replace(macs=900))
    assert "tensors differ in size" in difference(net, split._replace(macs=None))


def test_layouts_and_steps_of_1_are_ignored() -> None:
    onnx = of_shapes([((32, 16, 3, 3), "float32"), ((1, 32, 1), "float32")], [(1, 1), (2, 2)], 5)
    tf = of_shapes([((3, 3, 16, 32), "float32"), ((32,), "float32")], [(1, 2, 2, 1)], 5)
    assert onnx == tf


def test_multiplications_are_compared_at_one_size_of_the_input() -> None:
    def variant(backend: str, shape: str) -> Cell:
        return row(backend=backend, shape=(shape,)).cell.variant

    small, large = Structure((16,), ("float32",), (), 100), Structure((16,), ("float32",), (), 400)
    given: dict[Cell, Structure | str] = {
        variant("ort", "x=1x8"): small,
        variant("ort", "x=1x16"): large,
        variant("litert", "x=1x8"): small,
        variant("litert", "x=1x16"): small,
    }
    (found,) = strangers(given)
    assert found[0] == variant("litert", "x=1x16")
    assert "100 multiplications per sample, not 400" in found[1]


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 50, b"<net>", b'<!DOCTYPE a [<!ENTITY b "c">]><a/>']
)
def test_file_that_is_not_a_model_is_reported_in_one_line(content: bytes, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    readers = {"a.xml": of_openvino, "a.onnx": of_onnx, "a.tflite": of_tflite}
    for name, read in readers.items():
        path = tmp_path / name
        path.write_bytes(content)
        if name == "a.onnx" and content.startswith(b"<"):
            # Protobuf parsers accept unknown field numbers, so they read this text as an empty
            # model.
            continue
        with pytest.raises(ConfigError, match=r"is not an? (OpenVINO IR|ONNX file|LiteRT file)"):
            read(path)


def test_a_broken_litert_file_gives_an_error_line_or_a_different_network(tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_litert")
    whole = (MODELS_DIR / "digits.tflite").read_bytes()
    path = tmp_path / "a.tflite"
    random = np.random.default_rng(0)
    for _ in range(100):
        broken = bytearray(
            whole[: random.integers(1, len(whole))] if random.random() < 0.3 else whole
        )
        for at in random.integers(0, min(len(broken), 4000), 20):
            broken[at] = random.integers(0, 256)
        path.write_bytes(broken)
        try:
            found = of_tflite(path)
        except ConfigError:
            continue
        assert isinstance(found, Structure)


def test_litert_tensor_larger_than_its_file_is_refused() -> None:
    """Without a limit, reading a broken file whose vectors point to each other takes hours."""
    schema = pytest.importorskip("ai_edge_litert.schema_py_generated")
    content = (MODELS_DIR / "digits.tflite").read_bytes()
    model = schema.Model.GetRootAs(content, 0)
    assert _NetworkReader(len(content)).structure(model) == of_tflite(MODELS_DIR / "digits.tflite")
    with pytest.raises(ValueError, match="it is truncated"):
        _NetworkReader(40).structure(model)


def test_litert_file_without_its_package_is_refused_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(PluginUnavailable, match=re.escape(how_to_install("litert"))):
        of_tflite(MODELS_DIR / "digits.tflite")
