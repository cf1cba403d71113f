"""The backend `tract` on ONNX files whose inner shapes contradict the sizes that a manifest fixes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.errors import ConfigError
from harness.types import BackendSetup, Batch, TensorSpec

pytest.importorskip("tract")
onnx: Any = pytest.importorskip("onnx")


def halved(path: Path, *, inside: str) -> Path:
    """Writes a network that returns the larger number of each pair. inside: the file's name for the halved width."""
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        helper.make_node("MaxPool", ["x"], ["half"], kernel_shape=[2], strides=[2]),
        helper.make_node("Relu", ["half"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "halved",
        [helper.make_tensor_value_info("x", kind, ["n", 3, "width"])],
        [helper.make_tensor_value_info("y", kind, None)],
        value_info=[helper.make_tensor_value_info("half", kind, ["n", 3, inside])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def opened(path: Path, width: int | None) -> Any:
    inputs = (TensorSpec("x", "float32", (None, 3, width)),)
    setup = BackendSetup(model=path, model_name="halved", inputs=inputs, threads=1, max_batch=4)
    return registry.load("backend", "tract")(setup)


@pytest.mark.parametrize("count", [1, 3, 4])
def test_a_file_is_read_with_the_manifests_width(tmp_path: Path, count: int) -> None:
    """Bug: tract refused PP-OCR's recogniser, which uses a symbolic name for a width that follows from the input's
    width.
    """
    x = np.random.default_rng(0).standard_normal((count, 3, 8), np.float32)
    with opened(halved(tmp_path / "halved.onnx", inside="half_width"), 8) as backend:
        outputs = backend.infer(Batch(count, {"x": x}))
    y = outputs["y"] if isinstance(outputs, dict) else outputs
    np.testing.assert_array_equal(np.asarray(y), np.maximum(x.reshape(count, 3, 4, 2).max(-1), 0))


def test_a_file_that_stays_unreadable_has_the_first_reason(tmp_path: Path) -> None:
    path = halved(tmp_path / "halved.onnx", inside="half_width")
    model = onnx.load(path)
    model.graph.node[1].op_type = "NoSuchOperator"
    onnx.save(model, path)
    with pytest.raises(ConfigError, match="half_width"):
        opened(path, 8).__enter__()
