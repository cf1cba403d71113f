"""Graphs read from ONNX files: shapes, order, constants, and which layers are equal."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.models.graph.graph import Tensor
from harness.models.graph.onnx_file import read
from tests.builders.models import odd_files
from tests.builders.refusals import refusal, refusals

onnx = pytest.importorskip("onnx")


def save(
    path: Path, nodes: list[Any], inputs: dict[str, Any], outputs: list[str], **weights: Any
) -> Path:
    """Writes a model with float32 inputs. weights: arrays by name."""
    values = [odd_files.value(name, shape) for name, shape in inputs.items()]
    ends = [odd_files.value(name, None) for name in outputs]
    return odd_files.write(path, nodes, values, ends, weights)


def conv_net(path: Path, seed: int = 0, stride: int = 1) -> Path:
    random = np.random.default_rng(seed)
    first, second = (random.standard_normal((8, 8, 3, 3), np.float32) for _ in range(2))
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1] * 4, strides=[stride] * 2),
        onnx.helper.make_node("Relu", ["a"], ["b"]),
        onnx.helper.make_node("Conv", ["b", "w2"], ["c"], pads=[1] * 4),
        onnx.helper.make_node("Relu", ["c"], ["y"]),
    ]
    return save(path, nodes, {"x": ["n", 8, 16, 16]}, ["y"], w1=first, w2=second)


def test_two_copies_with_other_weights_have_the_same_layers(tmp_path: Path) -> None:
    one, other = (read(conv_net(tmp_path / f"{seed}.onnx", seed)) for seed in (1, 2))
    assert [one.key(node) for node in one.nodes] == [other.key(node) for node in other.nodes]
    assert sorted(one.unique.values()) == [2, 2]


def test_another_stride_is_another_layer(tmp_path: Path) -> None:
    one, other = (read(conv_net(tmp_path / f"{s}.onnx", stride=s)) for s in (1, 2))
    assert one.unique.keys() != other.unique.keys()
    assert one.key(one.nodes[0]) != other.key(other.nodes[0])


def test_explicit_default_attributes_make_no_other_layer(tmp_path: Path) -> None:
    weight = np.zeros((4, 4, 1, 1), np.float32)
    keys = set()
    for i, spoken in enumerate(
        ({}, {"strides": [1, 1], "dilations": [1, 1], "kernel_shape": [1, 1]})
    ):
        nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"], **spoken)]
        graph = read(save(tmp_path / f"{i}.onnx", nodes, {"x": [1, 4, 8, 8]}, ["y"], w=weight))
        keys.add(graph.key(graph.nodes[0]))
    assert len(keys) == 1


def test_integers_that_shape_the_work_are_part_of_a_layer(tmp_path: Path) -> None:
    keys = set()
    for axes in ([0, 1, 16], [0, 16, 1]):
        nodes = [onnx.helper.make_node("Reshape", ["x", "s"], ["y"])]
        path = save(tmp_path / f"{axes[1]}.onnx", nodes, {"x": [1, 4, 4]}, ["y"], s=np.array(axes))
        graph = read(path)
        keys.add(graph.key(graph.nodes[0]))
    assert len(keys) == 2


def test_shapes_follow_the_requested_batch(tmp_path: Path) -> None:
    graph = read(conv_net(tmp_path / "net.onnx"), batch=3)
    assert graph.sizes == {"n": 3}
    assert graph.tensors["y"] == Tensor("float32", (3, 8, 16, 16))
    assert graph.tensors["y"].size_bytes == 3 * 8 * 16 * 16 * 4
    assert (graph.inputs, graph.outputs) == (("x",), ("y",))
    assert [n.op_type for n in graph.consumers["a"]] == ["Relu"]
    assert graph.producer["c"].op_type == "Conv"


def test_shapes_computed_in_the_graph_are_known(tmp_path: Path) -> None:
    nodes = [
        onnx.helper.make_node("Shape", ["x"], ["whole"]),
        onnx.helper.make_node("Gather", ["whole", "zero"], ["n"], axis=0),
        onnx.helper.make_node("Unsqueeze", ["n", "axes"], ["first"]),
        onnx.helper.make_node("Concat", ["first", "rest"], ["shape"], axis=0),
        onnx.helper.make_node("Reshape", ["x", "shape"], ["y"]),
    ]
    numbers = {"zero": np.array(0), "axes": np.array([0]), "rest": np.array([-1, 2])}
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", 4, 4]}, ["y"], **numbers)
    assert read(path, batch=5).tensors["y"].shape == (5, 8, 2)


def test_sizes_computed_by_the_model_determine_further_shapes(tmp_path: Path) -> None:
    """Models compute sizes when they cut position embeddings to the length of a text."""
    nodes = [
        onnx.helper.make_node("Shape", ["x"], ["whole"]),
        onnx.helper.make_node("Slice", ["whole", "one", "two"], ["length"]),
        onnx.helper.make_node("Slice", ["places", "zero", "length"], ["cut"]),
        onnx.helper.make_node("Shape", ["cut"], ["again"]),
        onnx.helper.make_node("Expand", ["x", "again"], ["y"]),
    ]
    numbers = {"zero": np.array([0]), "one": np.array([1]), "two": np.array([2])}
    places = np.zeros((32, 1), np.float32)
    path = save(tmp_path / "m.onnx", nodes, {"x": [1, "n"]}, ["y"], places=places, **numbers)
    graph = read(path, sizes={"n": 8})
    assert graph.tensors["cut"].shape == (8, 1)
    assert graph.tensors["y"].shape == (8, 8)
    assert graph.values["again"].tolist() == [8, 1]
    assert [n.op_type for n in graph.layers] == ["Expand"]


def test_constant_nodes_and_their_results_are_folded(tmp_path: Path) -> None:
    value = onnx.numpy_helper.from_array(np.ones(4, np.float32))
    nodes = [
        onnx.helper.make_node("Constant", [], ["ones"], value=value),
        onnx.helper.make_node("Neg", ["ones"], ["minus"]),
        onnx.helper.make_node("Mul", ["x", "minus"], ["y"]),
    ]
    graph = read(save(tmp_path / "m.onnx", nodes, {"x": [1, 4]}, ["y"]))
    assert [n.op_type for n in graph.nodes] == ["Neg", "Mul"]
    assert [n.op_type for n in graph.layers] == ["Mul"]
    assert graph.constants["ones"].tensor == Tensor("float32", (4,))


def test_every_dimension_without_a_size_is_named(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Relu", ["x"], ["y"])]
    path = save(tmp_path / "m.onnx", nodes, {"x": ["n", "height", "width"]}, ["y"])
    assert refusals(read, path) == [
        f"{path}: dimension '{name}' of input 'x' has no size: set it, e.g. --size {name}=64"
        for name in ("height", "width")
    ]
    assert read(path, sizes={"height": 2, "width": 3}).tensors["y"].shape == (1, 2, 3)
    assert read(path, shapes={"x": (7, 8, 9)}).tensors["y"].shape == (7, 8, 9)


@pytest.mark.parametrize("content", [b"", b"no model", b"\x08\x08"])
def test_file_that_is_not_a_model_is_reported_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    assert "is not an ONNX model" in refusal(read, path)


def test_weights_are_not_kept_and_their_sizes_are(tmp_path: Path) -> None:
    graph = read(conv_net(tmp_path / "net.onnx"))
    weight = graph.constants["w1"]
    assert (weight.value, weight.is_external) == (None, False)
    assert weight.tensor.size_bytes == 8 * 8 * 9 * 4
    assert graph.proto.ByteSize() < 2_000
