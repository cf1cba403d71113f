"""Small networks as ONNX files, for code that cuts and runs graphs."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
FLOAT = onnx.TensorProto.FLOAT


class Net:
    """A small network: each method adds a layer and returns its output's name."""

    def __init__(self, seed: int = 0, channels: int = 16) -> None:
        self.random = np.random.default_rng(seed)
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self.channels = channels

    def add(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op_type}{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(op_type, list(inputs), [name], name, **attributes))
        return name

    def weight(self, *shape: int) -> str:
        array = self.random.standard_normal(shape).astype(np.float32)
        self.weights.append(onnx.numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return f"w{len(self.weights) - 1}"

    def conv(self, x: str, stride: int = 1) -> str:
        weight = self.weight(self.channels, self.channels, 3, 3)
        return self.add("Conv", x, weight, pads=[1] * 4, strides=[stride] * 2)

    def save(self, path: Path, *outputs: str) -> Path:
        shape = ["batch", self.channels, 16, 16]
        graph = onnx.helper.make_graph(
            self.nodes,
            "net",
            [onnx.helper.make_tensor_value_info("x", FLOAT, shape)],
            [onnx.helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
            self.weights,
        )
        opsets = [onnx.helper.make_opsetid("", 17)]
        onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
        return path


def residual(path: Path, seed: int = 0, blocks: int = 3, stride: int = 1) -> Path:
    """Writes repeated blocks of Conv > Relu > Conv > Add > Relu."""
    net = Net(seed)
    end = net.add("Relu", net.conv("x", stride))
    for _ in range(blocks):
        inner = net.conv(net.add("Relu", net.conv(end)))
        end = net.add("Relu", net.add("Add", inner, end))
    return net.save(path, end)


def inception(path: Path, modules: int = 2) -> Path:
    """Writes modules with two branches, a concatenation, and a convolution that restores the number of channels."""
    net = Net()
    end = "x"
    for _ in range(modules):
        one = net.add("Relu", net.conv(end))
        two = net.add("Relu", net.conv(net.add("Relu", net.conv(end))))
        joined = net.add("Concat", one, two, axis=1)
        weight = net.weight(net.channels, 2 * net.channels, 1, 1)
        end = net.add("Relu", net.add("Conv", joined, weight))
    return net.save(path, end)
