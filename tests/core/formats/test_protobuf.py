"""The harness reads the producer and the operator sets of an ONNX file without the onnx package."""

from pathlib import Path

import pytest

from harness.core.formats.protobuf import onnx_origin


def test_the_producer_and_the_operator_sets_of_a_file_are_read(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [], [])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    model = helper.make_model(graph, opset_imports=opsets, producer_name="pytorch")
    onnx.save(model, tmp_path / "m.onnx")
    origin = {"producer": "pytorch", "opsets": "ai.onnx 17, ai.onnx.ml 3"}
    assert onnx_origin(tmp_path / "m.onnx") == origin
    model.producer_version = "2.4"
    onnx.save(model, tmp_path / "m.onnx")
    assert onnx_origin(tmp_path / "m.onnx")["producer"] == "pytorch 2.4"


@pytest.mark.parametrize("content", [b"", b"<xml>", b"\x0a", b"\xff" * 20, b"\x42\x02\x10"])
def test_another_file_gives_an_empty_result(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.onnx").write_bytes(content)
    assert onnx_origin(tmp_path / "m.onnx") == {}
    assert onnx_origin(tmp_path) == {}
