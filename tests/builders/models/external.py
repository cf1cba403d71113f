"""Builds an ONNX file whose weights are in a separate file."""

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.builders.models.odd_files import value

ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)


def external(location: str, name: str = "w") -> Any:
    """Returns a tensor whose values are stored in the file `location`."""
    tensor = numpy_helper.from_array(ROWS, name)
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, told in (("location", location), ("offset", "0"), ("length", str(ROWS.nbytes))):
        tensor.external_data.add(key=key, value=told)
    return tensor


def split(folder: Path, location: str = "weights.bin") -> Path:
    """Writes a model that multiplies x (batch, 3) by a matrix from a separate file."""
    x, y = value("x", ["batch", 3]), value("y", ["batch", 4])
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "split", [x], [y], [external(location)])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "model.onnx").write_bytes(made.SerializeToString())
    if location == "weights.bin":
        (folder / location).write_bytes(ROWS.tobytes())
    return folder / "model.onnx"
