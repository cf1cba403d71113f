"""The kernels in ONNX Runtime's profile, mapped to the nodes of the model's file."""

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.explain.kernels.fused import map_kernels
from harness.explain.kernels.kernels import LayerProfile
from harness.explain.kernels.layers import layers_of
from harness.explain.kernels.ort import NoNode, interleaved, profile
from harness.explain.kernels.ort_events import NS_PER_US, read_events
from harness.explain.profile.measure.layer_level import node_costs
from harness.explain.profile.tables.layer_tables import LayerLevel
from harness.models.graph import onnx_file
from harness.models.graph.wiring import read_wiring
from harness.models.made.onnx_light import LIGHT, make
from harness.models.opened.ort_session import SessionSetup
from harness.profiler import WiredNode, Wiring
from tests.builders.models import foreign_nets as nets

DIGITS = Path(__file__).parents[3] / "harness/models/shipped/digits.onnx"
Node = tuple[str, str, Sequence[str], Sequence[str]]


def graph(*nodes: Node, weights: Sequence[str] = (), outputs: Sequence[str] = ("y",)) -> Wiring:
    """Builds a graph. nodes: (name, operator, inputs, outputs); the model's input is x."""
    wired = [WiredNode(name, op, "", tuple(i), tuple(o)) for name, op, i, o in nodes]
    return Wiring(wired, ("x",), tuple(outputs), frozenset(weights))


CONV_BN_RELU = graph(
    ("", "Conv", ["x", "w"], ["a"]),
    ("", "BatchNormalization", ["a", "s"], ["b"]),
    ("", "Relu", ["b"], ["c"]),
    ("", "Softmax", ["c"], ["y"]),
    weights=("w", "s"),
)


def test_a_fused_kernel_covers_all_nodes_from_its_inputs_to_its_output() -> None:
    executed = graph(
        ("k", "Conv", ["x", "w2"], ["c"]), ("", "Softmax", ["c"], ["y"]), weights=("w2",)
    )
    found = map_kernels(CONV_BN_RELU, executed)
    assert [o.nodes for o in found.origins] == [(0, 1, 2), (3,)]
    assert found.eliminated == {}


def test_a_blocked_kernel_is_mapped_and_its_reorder_is_inserted() -> None:
    executed = graph(
        ("c_nchwc", "Conv", ["x", "w2"], ["t0"]),
        ("ReorderOutput", "ReorderOutput", ["t0"], ["c"]),
        ("", "Softmax", ["c"], ["y"]),
        weights=("w2",),
    )
    found = map_kernels(CONV_BN_RELU, executed)
    assert [(o.nodes, o.inserted) for o in found.origins] == [
        ((0, 1, 2), False),
        ((0, 1, 2), True),
        ((3,), False),
    ]


def test_a_blocked_convolution_covers_its_fused_sum_and_activation() -> None:
    file = graph(
        ("", "Relu", ["x"], ["r"]),
        ("", "Conv", ["r", "w"], ["a"]),
        ("", "Add", ["a", "r"], ["b"]),
        ("", "Relu", ["b"], ["c"]),
        ("", "Softmax", ["c"], ["y"]),
        weights=("w",),
    )
    executed = graph(
        ("", "Relu", ["x"], ["r"]),
        ("a_nchwc", "Conv", ["r", "w", "", "r"], ["t0"]),
        ("ReorderOutput", "ReorderOutput", ["t0"], ["c"]),
        ("", "Softmax", ["c"], ["y"]),
        weights=("w",),
    )
    found = map_kernels(file, executed)
    assert [o.nodes for o in found.origins] == [(0,), (1, 2, 3), (1, 2, 3), (4,)]


def test_a_kernel_that_kept_only_its_operator_is_found_by_its_inputs() -> None:
    file = graph(
        ("", "Conv", ["x", "w"], ["a"]),
        ("", "Conv", ["x", "v"], ["b"]),
        ("", "Concat", ["a", "b"], ["c"]),
        ("", "MaxPool", ["c"], ["y"]),
        weights=("w", "v"),
    )
    executed = graph(
        ("a_nchwc", "Conv", ["x", "w2"], ["t0"]),
        ("b_nchwc", "Conv", ["x", "v2"], ["t1"]),
        ("any", "Concat", ["t0", "t1"], ["t2"]),
        ("", "MaxPool", ["t2"], ["y"]),
        weights=("w2", "v2"),
    )
    assert [o.nodes for o in map_kernels(file, executed).origins] == [(0,), (1,), (2,), (3,)]


def test_kernels_that_replace_a_node_together_share_it() -> None:
    executed = graph(
        ("k", "Conv", ["x", "w"], ["c"]),
        ("", "Exp", ["c"], ["new"]),
        ("", "Normalise", ["new"], ["y"]),
        weights=("w",),
    )
    assert [o.nodes for o in map_kernels(CONV_BN_RELU, executed).origins] == [(0, 1, 2), (3,), (3,)]


def test_a_node_without_a_kernel_is_eliminated_with_a_reason() -> None:
    file = graph(
        ("", "ConstantOfShape", ["s"], ["w"]),
        ("", "Shape", ["x"], ["d"]),
        ("", "Dropout", ["x"], ["x2"]),
        ("", "Neg", ["x"], ["nobody"]),
        ("", "Reshape", ["x2", "d"], ["r"]),
        ("", "MatMul", ["r", "w"], ["y"]),
        weights=("s",),
    )
    executed = graph(
        ("", "Reshape", ["x", "d"], ["r"]), ("", "MatMul", ["r", "w"], ["y"]), weights=("d", "w")
    )
    found = map_kernels(file, executed)
    assert [o.nodes for o in found.origins] == [(4,), (5,)]
    assert {i: why.split(":")[0] for i, why in found.eliminated.items()} == {
        0: "constant",
        1: "its result is known from the shapes",
        2: "does nothing at inference",
        3: "no output depends on it",
    }


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> tuple[LayerProfile, Path]:
    pytest.importorskip("onnxruntime")
    events = tmp_path_factory.mktemp("events") / "events.json"
    feeds = {"image": np.zeros((2, 1, 8, 8), np.float32)}
    return profile(DIGITS, feeds, runs=4, warm_up=1, keep_events=events), events


def test_every_kernel_and_every_node_of_the_digits_model_is_accounted_for(
    digits: tuple[LayerProfile, Path],
) -> None:
    found, _ = digits
    assert all(kernel.nodes for kernel in found.kernels)
    mapped = {node for kernel in found.kernels for node in kernel.nodes}
    assert mapped | found.eliminated.keys() == set(range(len(read_wiring(DIGITS).nodes)))
    assert all(len(kernel.duration_ns) == 4 for kernel in found.kernels)
    assert len(found.session.run_ns) == len(found.plain.wall_ns) == 4
    assert found.kernels[0].inputs[0].shape == (2, 1, 8, 8)


def test_kernels_lie_inside_their_run_and_the_run_inside_the_call(
    digits: tuple[LayerProfile, Path],
) -> None:
    found, _ = digits
    for run, (inside, call) in enumerate(
        zip(found.session.run_ns, found.profiled.wall_ns, strict=True)
    ):
        assert sum(k.duration_ns[run] for k in found.kernels) <= inside + NS_PER_US
        assert inside <= call + 2 * NS_PER_US


def test_a_profile_is_the_same_after_it_was_stored(digits: tuple[LayerProfile, Path]) -> None:
    found, _ = digits
    stored = json.loads(json.dumps({"profile": found.to_json(), "nodes": []}))
    assert LayerLevel.from_json(stored).profile == found


def test_each_kernel_has_one_event_per_run(digits: tuple[LayerProfile, Path]) -> None:
    found, file = digits
    names = [e["name"] for e in read_events(file) if e["cat"] == "Node"]
    assert len(names) == (4 + 1) * len(found.kernels)


def test_an_invalid_profile_or_model_is_reported_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "f"
    for text in ("", "{}", '[{"name": "model_run"}]', "[1]"):
        file.write_text(text)
        with pytest.raises(ConfigError, match=r"^.*f is not a profile of ONNX Runtime: .*$"):
            read_events(file)
        with pytest.raises(ConfigError, match=r"^.*f is not an ONNX model.*$"):
            read_wiring(file)


def test_calls_take_turns_and_each_is_timed() -> None:
    order: list[str] = []
    times = interleaved([lambda: order.append("a"), lambda: order.append("b")], 3)
    assert "".join(order) == "abbaab"
    assert [len(t.wall_ns) for t in times] == [3, 3]


def test_kernels_of_a_subgraph_are_part_of_the_node_that_has_it(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    make_node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    branches = {
        f"{name}_branch": onnx.helper.make_graph(
            [make_node("Neg", ["x"], [name]), make_node("Relu", [name], [f"{name}2"])],
            *(name, [], [value(f"{name}2", onnx.TensorProto.FLOAT, None)]),
        )
        for name in ("then", "else")
    }
    nodes = [
        make_node("ReduceSum", ["x"], ["s"], keepdims=0),
        make_node("Cast", ["s"], ["c"], to=onnx.TensorProto.BOOL),
        make_node("If", ["c"], ["y"], **branches),
    ]
    sides = [value("x", onnx.TensorProto.FLOAT, [2, 3])], [value("y", onnx.TensorProto.FLOAT, None)]
    graph = onnx.helper.make_graph(nodes, "g", *sides)
    opset = onnx.helper.make_opsetid("", 13)
    path = tmp_path / "if.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    found = profile(path, {"x": np.ones((2, 3), np.float32)}, runs=3)
    assert [kernel.op_type for kernel in found.kernels] == ["ReduceSum", "Cast", "If"]
    assert [kernel.nodes for kernel in found.kernels] == [(0,), (1,), (2,)]
    pairs = zip(found.session.execute_ns, found.session.run_ns, strict=True)
    assert all(0 < execute <= run for execute, run in pairs)


_PRODUCTS = ("Conv", "MatMul", "Gemm")


def _quantised(tmp_path: Path, *, by_default: bool) -> tuple[LayerProfile, Path]:
    pytest.importorskip("onnxruntime.quantization")
    float_file = nets.classifier(tmp_path / "float.onnx")
    path = nets.quantised(float_file, tmp_path / "q.onnx", "QDQ", by_default=by_default)
    return profile(path, {"x": np.zeros((1, 16, 16, 16), np.float32)}, runs=2), path


@pytest.mark.parametrize("by_default", [True, False], ids=["signed", "unsigned"])
def test_each_integer_kernel_covers_its_own_product(by_default: bool, tmp_path: Path) -> None:
    """Bug: with quantize_static's default types, which ONNX Runtime changes from signed to unsigned, the first
    QuantizeLinear was mapped to the whole network.
    """
    found, path = _quantised(tmp_path, by_default=by_default)
    nodes = read_wiring(path).nodes
    products = {
        i: [nodes[n].op_type for n in kernel.nodes if nodes[n].op_type in _PRODUCTS]
        for i, kernel in enumerate(found.kernels)
        if not kernel.inserted
    }
    can_multiply = [any(op in k.op_type for op in _PRODUCTS) for k in found.kernels]
    assert [len(ops) for i, ops in products.items() if can_multiply[i]] == [1] * 6
    assert not any(ops for i, ops in products.items() if not can_multiply[i])


def test_weights_that_are_stored_as_integers_count_as_integers(tmp_path: Path) -> None:
    """Bug: the weights of a QGemm were counted as float32, which is four times the bytes that the kernel reads."""
    found, path = _quantised(tmp_path, by_default=True)
    costs = node_costs(read_wiring(path), onnx_file.read(path, 1), {})
    assert [c.weight_bytes for c in costs if c.op_type == "Conv"] == [16 * 16 * 3 * 3] * 5
    convs = [i for i, kernel in enumerate(found.kernels) if kernel.op_type == "QLinearConv"]
    layers = layers_of(found, costs)
    weights = [layers[i].read_bytes - found.kernels[i].activation_bytes for i in convs]
    scales = 16
    assert all(16 * 16 * 3 * 3 <= size <= 16 * 16 * 3 * 3 + scales for size in weights)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(LIGHT.keys() - {"vgg19", "alexnet", "zfnet512"}))
@pytest.mark.parametrize("level", ["all", "off"])
def test_kernels_of_the_light_topologies_are_mapped_whole(name: str, level: str) -> None:
    """The remaining three models add no operators, and each has half a GB of weights."""
    pytest.importorskip("onnxruntime")
    model = make(name)
    feeds = {LIGHT[name].input: np.zeros((1, 3, 224, 224), np.float32)}
    found = profile(model, feeds, runs=1, warm_up=0, setup=SessionSetup(graph=level))
    assert all(kernel.nodes for kernel in found.kernels)
    own = [node for kernel in found.kernels if not kernel.inserted for node in kernel.nodes]
    assert len(own) == len(set(own)), "no node has two kernels that compute"
    assert {*own} | found.eliminated.keys() == set(range(len(read_wiring(model).nodes)))


@pytest.mark.parametrize("folded", [False, True])
def test_a_model_without_any_executed_node_is_named(tmp_path: Path, folded: bool) -> None:
    """folded: whether the model consists only of a sum of constants."""
    onnx = pytest.importorskip("onnx")
    value, tensor = onnx.helper.make_tensor_value_info, onnx.helper.make_tensor
    nodes = [onnx.helper.make_node("Add", ["c", "c"], ["y"])] if folded else []
    ends = [[value("x", 1, [1, 4])], [value("y" if folded else "x", 1, [1, 4])]]
    made = onnx.helper.make_graph(nodes, "g", *ends, [tensor("c", 1, [1, 4], [1.0] * 4)])
    opset = onnx.helper.make_opsetid("", 13)
    path = tmp_path / "empty.onnx"
    onnx.save(onnx.helper.make_model(made, opset_imports=[opset], ir_version=8), path)
    with pytest.raises(NoNode) as error:
        profile(path, {"x": np.ones((1, 4), np.float32)}, runs=1, warm_up=1)
    assert str(error.value) == (
        f"{path}: ONNX Runtime runs no node of the model: it has no nodes, or all were folded away"
    )
