"""Builds an ONNX model from nodes and constants, with the package `onnx`."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.extras import how_to_install
from harness.errors import PluginUnavailable
from harness.types import Array

try:
    from onnx import TensorProto, helper, numpy_helper
except ModuleNotFoundError as e:
    raise PluginUnavailable(
        f"building a model needs the module {e.name!r}: {how_to_install('onnx')}"
    ) from e

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
node = helper.make_node

Shape = Sequence[int | str]
Ports = Mapping[str, tuple[int, Shape | None]]
"""Maps the name of an input or output to its element type and shape; None stands for an open shape."""


def build(
    name: str,
    nodes: Sequence[Any],
    inputs: Ports,
    outputs: Ports,
    constants: Mapping[str, Array],
    ir_version: int = 8,
) -> Any:
    """Returns an onnx.ModelProto in opset 17."""
    graph = helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info(port, *about) for port, about in inputs.items()],
        [helper.make_tensor_value_info(port, *about) for port, about in outputs.items()],
        [numpy_helper.from_array(value, constant) for constant, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
