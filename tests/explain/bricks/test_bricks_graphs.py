"""Bricks of graphs with QDQ, If, Loop or Scan, or with weights in separate files."""

import json
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.explain.bricks import job
from harness.explain.bricks.cut import cutting
from harness.explain.bricks.options import BrickOptions
from harness.explain.bricks.tables import construct
from harness.explain.bricks.time import runs
from harness.explain.bricks.time.layouts import reorders
from harness.explain.kernels.ort_events import Event
from harness.explain.pieces.cut import Cut, decisions
from harness.explain.pieces.made_up import activations
from harness.models.graph.graph import Graph
from harness.models.graph.onnx_file import read
from harness.models.opened.ort_session import SessionSetup, open_session
from harness.models.opened.template import manifest_of
from tests.builders.models.nets import Net, inception, residual

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
INTEGER_ENDS = ("QuantizeLinear", "DequantizeLinear")


def cuts_of(graph: Graph, most: int = 8) -> list[Cut]:
    return [Cut(graph, piece) for piece in cutting.by_groups(graph, most)]


def executed(model: Path | bytes, folder: Path) -> Counter[str]:
    """Returns the number of nodes per operator type in the graph as ONNX Runtime optimises it."""
    open_session(model, optimised=folder / "executed.onnx")
    return Counter(node.op_type for node in onnx.load(folder / "executed.onnx").graph.node)


def quantised(path: Path) -> Path:
    from harness.models.precision.onnx import quantise, recipe

    random = np.random.default_rng(1)
    feeds = [{"x": random.random((1, 16, 16, 16), dtype=np.float32)} for _ in range(2)]
    file = path.with_name(f"{path.stem}-int8.onnx")
    quantise(path, file, feeds, recipe("int8", path))
    return file


def pooled(path: Path) -> Path:
    """Writes two branches, their concatenation, a pool and a layer, twice in a row."""
    net, end = Net(), "x"
    for _ in range(2):
        joined = net.add(
            "Concat", net.add("Relu", net.conv(end)), net.add("Relu", net.conv(end)), axis=1
        )
        pool = net.add("MaxPool", joined, kernel_shape=[3, 3], strides=[1, 1], pads=[1] * 4)
        end = net.add("Relu", net.add("Conv", pool, net.weight(16, 32, 1, 1)))
    return net.save(path, end)


def biased(path: Path) -> Path:
    """Writes convolutions whose biases are also quantised."""
    net, end = Net(), "x"
    for _ in range(5):
        weight, bias = net.weight(16, 16, 3, 3), net.weight(16)
        end = net.add("Relu", net.add("Conv", end, weight, bias, pads=[1] * 4))
    return net.save(path, end)


@pytest.mark.parametrize("make", [residual, inception, pooled, biased])
@pytest.mark.parametrize("most", [1, 4, 8])
def test_bricks_of_integers_compute_integers(tmp_path: Path, make: Any, most: int) -> None:
    """Bug: a brick between a QuantizeLinear and its DequantizeLinear computed floats, and took 1.55 times the model's
    time.
    """
    path = quantised(make(tmp_path / "net.onnx"))
    whole = executed(path, tmp_path)
    assert whole["QLinearConv"] >= 5
    assert not whole["Conv"]
    graph = read(path)
    cuts = cuts_of(graph, most)
    assert sorted(n.index for c in cuts for n in c.nodes) == [n.index for n in graph.layers]
    total: Counter[str] = Counter()
    for cut in cuts:
        model = cut.model()
        onnx.checker.check_model(model, full_check=True)
        total += executed(model.SerializeToString(), tmp_path)
    assert total["QLinearConv"] == whole["QLinearConv"]
    assert not total["Conv"]
    assert (total["QLinearAdd"], total["QLinearConcat"]) == (
        whole["QLinearAdd"],
        whole["QLinearConcat"],
    )


def test_integer_pools_keep_the_layout_of_the_model(tmp_path: Path) -> None:
    """Bug: in the plain layout, the pools took forty times as long."""
    path = quantised(pooled(tmp_path / "net.onnx"))
    assert executed(path, tmp_path)["NhwcMaxPool"] == 2
    kernels = [
        executed(c.model().SerializeToString(), tmp_path) for c in cuts_of(read(path), most=8)
    ]
    assert sum(counts["NhwcMaxPool"] for counts in kernels) == 2


def test_a_product_stays_with_the_dynamic_quantisation_before_it(tmp_path: Path) -> None:
    from onnxruntime.quantization import quantize_dynamic

    net, random = Net(), np.random.default_rng(0)
    end = "x"
    for i in range(3):
        weight = random.standard_normal((16, 16)).astype(np.float32)
        net.weights.append(onnx.numpy_helper.from_array(weight, f"m{i}"))
        end = net.add("Relu", net.add("MatMul", end, f"m{i}"))
    path = net.save(tmp_path / "net.onnx", end)
    quantize_dynamic(path, tmp_path / "int8.onnx")
    whole = executed(tmp_path / "int8.onnx", tmp_path)
    assert whole["DynamicQuantizeMatMul"] == 3
    total = Counter[str]()
    for cut in cuts_of(read(tmp_path / "int8.onnx"), 8):
        total += executed(cut.model().SerializeToString(), tmp_path)
    assert total["DynamicQuantizeMatMul"] == 3


def test_integer_pieces_follow_the_pieces_that_they_read(tmp_path: Path) -> None:
    graph = read(quantised(inception(tmp_path / "net.onnx")))
    for most in (1, 4, 8):
        computed = set(graph.inputs)
        for cut in cuts_of(graph, most):
            assert set(cut.inputs) <= computed
            computed |= set(cut.outputs)
            ends = {graph.tensors[n].dtype for n in (*cut.inputs, *cut.outputs)}
            assert ends <= {"uint8", "float32"}
            floats = {n for n in (*cut.inputs, *cut.outputs) if graph.tensors[n].dtype == "float32"}
            assert floats <= {*graph.inputs, *graph.outputs}


def test_a_brick_holds_no_weight_scale(tmp_path: Path) -> None:
    path = quantised(residual(tmp_path / "net.onnx"))
    model = onnx.load(path)
    of_weights = {
        node.input[1]
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        and node.input[0] in {t.name for t in model.graph.initializer}
    }
    secrets = [
        onnx.numpy_helper.to_array(t).tobytes()
        for t in model.graph.initializer
        if t.name in of_weights
    ]
    assert len(secrets) >= 7
    for cut in cuts_of(read(path)):
        content = cut.model().SerializeToString()
        assert not any(secret[:8] in content for secret in secrets)


@pytest.mark.parametrize("make", [residual, biased])
def test_published_integer_bricks_can_be_read_and_run(tmp_path: Path, make: Any) -> None:
    path, public = quantised(make(tmp_path / "net.onnx")), tmp_path / "public"
    words = ["bricks", str(path), "--structure", "-G", "2"]
    assert main([*words, "--publish", str(public), "--publish-order"]) == 0
    out, database = tmp_path / "out", tmp_path / "db"
    words = ["bricks", str(public), "--rounds", "1", "--database", str(database)]
    assert main([*words, "--out", str(out)]) == 0
    content = json.loads((out / "bricks.json").read_text())
    (model,) = content["models"].values()
    assert construct.construct(model, content["bricks"], "cpu_ns").covered == 1


def test_a_made_up_model_of_integers_runs(tmp_path: Path) -> None:
    """Bug: a layer and its DequantizeLinear nodes were mistaken for one node, which caused a traceback."""
    path, file = quantised(residual(tmp_path / "net.onnx")), tmp_path / "made.onnx"
    assert main(["bricks", str(path), "--structure", "--synthetic", str(file)]) == 0
    whole = executed(file, tmp_path)
    assert whole["QLinearConv"] >= 5
    open_session(file).run(None, {"x": np.ones((1, 16, 16, 16), np.float32)})


def test_a_resize_stays_with_what_it_resizes(tmp_path: Path) -> None:
    """Bug: a layer without its Resize uses a different kernel, so U-Nets had a ratio of 1.12 to 1.14."""
    net, end = Net(), "x"
    scales = onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], np.float32), "scales")
    net.weights.append(scales)
    for _ in range(2):
        end = net.add("Relu", net.conv(end))
        end = net.add("Resize", end, "", "scales", mode="linear")
    path = net.save(tmp_path / "up.onnx", net.conv(end))
    whole = executed(path, tmp_path)
    assert whole["Upsample"] == 2  # both Upsample nodes use the blocked layout
    for most in (1, 3, 4):
        cuts = cuts_of(read(path), most)
        if most > 1:
            total = Counter[str]()
            for cut in cuts:
                total += executed(cut.model().SerializeToString(), tmp_path)
            assert (total["Upsample"], total["Resize"]) == (2, 0)


# -- conversions of layouts inside a brick ---------------------------------------------------


def saved(path: Path, nodes: Sequence[Any], inputs: Sequence[str], output: str) -> Path:
    values = [onnx.helper.make_tensor_value_info(n, FLOAT, None) for n in (*inputs, output)]
    graph = onnx.helper.make_graph(list(nodes), "optimised", values[:-1], values[-1:])
    onnx.save(onnx.helper.make_model(graph), path)
    return path


def profiled(took_us: dict[str, int]) -> list[Event]:
    return [{"cat": "Node", "name": f"{n}_kernel_time", "dur": us} for n, us in took_us.items()]


@pytest.mark.parametrize(
    ("before", "after"), [("ReorderOutput", "ReorderInput"), ("Transpose", "Transpose")]
)
def test_conversions_around_a_sum_that_reads_an_input_are_known(
    tmp_path: Path, before: str, after: str
) -> None:
    """a -> Conv -> back -> Concat(b) -> there -> Conv: if `b` had the blocked layout, neither conversion would be
    needed.
    """
    node = onnx.helper.make_node
    nodes = [
        node(after, ["a"], ["a1"], "first"),
        node("Conv", ["a1"], ["c"], "conv"),
        node(before, ["c"], ["c1"], "back"),
        node("Concat", ["c1", "b"], ["s"], "join", axis=1),
        node(after, ["s"], ["s1"], "there"),
        node("Conv", ["s1"], ["d"], "conv2"),
        node(before, ["d"], ["y"], "last"),
    ]
    path = saved(tmp_path / "m.onnx", nodes, ("a", "b"), "y")
    times = profiled({"first": 1, "back": 2, "there": 4, "last": 8, "conv": 99})
    conversions = reorders(path, times, ("a", "b"), ("y",), ("Conv", "Concat", "Conv"))
    assert conversions.inputs_ns == (1000, None)
    assert conversions.outputs_ns == (8000,)
    assert conversions.inside == (((1,), 6000),)
    # A conversion that is part of the brick itself must not be subtracted.
    if before == "Transpose":
        own = reorders(path, times, ("a", "b"), ("y",), ("Conv", "Transpose", "Concat"))
        assert (own.inputs_ns, own.outputs_ns) == ((0, None), (0,))
        assert own.inside == (((1,), 0),)


@pytest.mark.parametrize(("maker_ns", "left_ns"), [(7, 0), (0, 6), (None, 0)])
def test_inner_conversions_are_subtracted_for_blocked_inputs(
    maker_ns: int | None, left_ns: int
) -> None:
    def brick(ns: int, **ends: Any) -> dict[str, Any]:
        samples = {"cpu_ns": [ns], "wall_ns": [ns]}
        beside = {"cpu_ns": [0], "wall_ns": [0]}
        return {"result": {**samples, "beside": beside, "reorders": ends}}

    bricks = {
        "a": brick(100 + (maker_ns or 0), inputs_ns=[0], outputs_ns=[maker_ns]),
        "b": brick(106, inputs_ns=[None], outputs_ns=[0], inside=[[[0], 6]]),
    }
    pieces = [
        {"brick": "a", "layers": [0], "inputs": ["x"], "outputs": ["t"]},
        {"brick": "b", "layers": [1], "inputs": ["t"], "outputs": ["y"]},
    ]
    model = {"pieces": pieces, "overhead": {"cpu_ns": [0]}}
    assert construct.construct(model, bricks, "cpu_ns").sequential_ns == 200 + left_ns


# -- If, Loop, Scan --------------------------------------------------------------------------


def value(name: str, shape: Sequence[int | str] | None, dtype: int = FLOAT) -> Any:
    return onnx.helper.make_tensor_value_info(name, dtype, shape)


def branch(name: str, times: int) -> Any:
    """Returns a graph of `times` matrix products, with a weight inside the graph or with `wide` from outside."""
    weight = np.random.default_rng(times).standard_normal((64, 64)).astype(np.float32)
    steps = ["wide", *(f"step{i}" for i in range(times))]
    nodes = [onnx.helper.make_node("MatMul", [a, "w"], [b]) for a, b in pairwise(steps)]
    tensor = onnx.numpy_helper.from_array(weight, "w")
    return onnx.helper.make_graph(nodes, name, [], [value(steps[-1], [8, 64])], [tensor])


def choosing(path: Path) -> Path:
    """Writes an If whose condition the model computes from its input; every layer before the If reads 8 x 64."""
    node = onnx.helper.make_node
    nodes = [
        node("Relu", ["x"], ["wide"]),
        node("ReduceSum", ["wide"], ["sum"], keepdims=0),
        node("Greater", ["sum", "limit"], ["large"]),
        node("If", ["large"], ["z"], then_branch=branch("then", 3), else_branch=branch("else", 1)),
        node("Relu", ["z"], ["y"]),
    ]
    limit = onnx.numpy_helper.from_array(np.array(1e9, np.float32), "limit")
    graph = onnx.helper.make_graph(
        nodes, "choosing", [value("x", [8, 64])], [value("y", None)], [limit]
    )
    return write(graph, path)


def looping(path: Path, scanned: str = "") -> Path:
    """Writes a Loop that repeats a matrix product three times, and the layers after the Loop."""
    node = onnx.helper.make_node
    body = onnx.helper.make_graph(
        [node("MatMul", ["state", "weight"], ["next"]), node("Identity", ["go"], ["on"])],
        "body",
        [value("turn", [], INT64), value("go", [], BOOL), value("state", [8, 64])],
        [value("on", [], BOOL), value("next", [8, 64])],
    )
    constants = {
        "turns": np.array(3),
        "yes": np.array(True),
        "weight": np.eye(64, dtype=np.float32),
    }
    nodes = [
        node("Relu", ["x"], ["first"]),
        node("Loop", ["turns", "yes", "first"], ["last"], body=body),
        node("Relu", ["last"], ["y"]),
    ]
    tensors = [onnx.numpy_helper.from_array(v, k) for k, v in constants.items()]
    graph = onnx.helper.make_graph(
        nodes, "looping", [value("x", [8, 64])], [value("y", None)], tensors
    )
    return write(graph, path)


def scanning(path: Path) -> Path:
    """Writes a Scan that adds up the rows of its input."""
    node = onnx.helper.make_node
    body = onnx.helper.make_graph(
        [node("Add", ["sum", "row"], ["next"]), node("Identity", ["next"], ["kept"])],
        "body",
        [value("sum", [64]), value("row", [64])],
        [value("next", [64]), value("kept", [64])],
    )
    nodes = [
        node("Relu", ["x"], ["rows"]),
        node("Scan", ["zero", "rows"], ["total", "sums"], body=body, num_scan_inputs=1),
        node("Relu", ["sums"], ["y"]),
    ]
    zero = onnx.numpy_helper.from_array(np.zeros(64, np.float32), "zero")
    graph = onnx.helper.make_graph(
        nodes, "scanning", [value("x", [8, 64])], [value("y", None), value("total", None)], [zero]
    )
    return write(graph, path)


def write(graph: Any, path: Path) -> Path:
    opsets = [onnx.helper.make_opsetid("", 17)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


@pytest.mark.parametrize("make", [choosing, looping, scanning])
@pytest.mark.parametrize("most", [1, 8])
def test_control_flow_runs_in_bricks_and_is_not_published(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any, most: int
) -> None:
    """Bug: `bricks` refused the model with 'may contain trained numbers' (status 4), although nothing was published."""
    path = make(tmp_path / "net.onnx")
    out, database = tmp_path / "out", tmp_path / "db"
    words = ["bricks", str(path), "--rounds", "2", "-G", str(most), "--database", str(database)]
    assert main([*words, "--out", str(out)]) == 0
    content = json.loads((out / "bricks.json").read_text())
    (model,) = content["models"].values()
    assert model["why_not"] is None
    times = construct.construct(model, content["bricks"], "cpu_ns")
    assert times.covered == 1
    capsys.readouterr()
    assert main([*words, "--structure", "--publish", str(tmp_path / "public")]) == 2
    assert "may contain trained numbers" in capsys.readouterr().err
    assert not (tmp_path / "public").exists()


@pytest.mark.parametrize("make", [choosing, looping, scanning])
def test_a_brick_of_control_flow_has_no_name_of_the_model(tmp_path: Path, make: Any) -> None:
    graph = read(make(tmp_path / "net.onnx"))
    for cut in cuts_of(graph, 1):
        model = cut.model()
        open_session(model.SerializeToString())
        text = str(model.graph)
        for name in ("wide", "step0", "state", "weight", "next", "large"):
            assert f'"{name}"' not in text


def test_the_condition_of_an_if_is_taken_from_the_model(tmp_path: Path) -> None:
    """With random numbers as its condition, an If would take either branch."""
    graph = read(choosing(tmp_path / "net.onnx"))
    cut = next(c for c in cuts_of(graph, 1) if "If" in c.brick.layers)
    assert cut.decided_by == ["large"]
    setup, random = SessionSetup(threads=1), np.random.default_rng(0)
    feeds = {name: activations(random, graph.tensors[name]) for name in graph.inputs}
    decided = decisions(graph, [cut], feeds, setup)
    assert {name: value.tolist() for name, value in decided.items()} == {"large": False}
    seen: list[Any] = []

    class Spy(runs.Pool):
        def place(self, arrays: Any) -> Any:
            seen.extend(a.tolist() for a in arrays if a.dtype == bool)
            return super().place(arrays)

    runs._brick(cut, setup, Spy(), decided)
    assert seen
    assert not any(seen)


def test_no_piece_begins_where_the_shape_depends_on_data(tmp_path: Path) -> None:
    """Bug: a random input is invalid where a shape depends on data, so the brick failed and the whole command with it
    (status 4).
    """
    node = onnx.helper.make_node
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("NonZero", ["a"], ["where"]),
        node("Cast", ["where"], ["f"], to=FLOAT),
        node("ReduceSum", ["f"], ["sum"], keepdims=0),
        node("Add", ["x", "sum"], ["b"]),
        node("MatMul", ["b", "w"], ["y"]),
    ]
    weight = onnx.numpy_helper.from_array(np.eye(64, dtype=np.float32), "w")
    graph = onnx.helper.make_graph(
        nodes, "net", [value("x", [8, 64])], [value("y", None)], [weight]
    )
    path = write(graph, tmp_path / "net.onnx")
    kinds = [[n.op_type for n in c.nodes] for c in cuts_of(read(path), 1)]
    assert ["NonZero", "Cast", "ReduceSum"] in kinds
    words = ["bricks", str(path), "--rounds", "1", "-G", "1", "--database", str(tmp_path / "db")]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("make", [residual, choosing, "int8"])
def test_external_weights_are_made_up_like_the_others(tmp_path: Path, make: Any) -> None:
    path = (
        quantised(residual(tmp_path / "net.onnx"))
        if make == "int8"
        else make(tmp_path / "net.onnx")
    )
    (tmp_path / "apart").mkdir()
    apart = tmp_path / "apart" / "net.onnx"
    onnx.save(
        onnx.load(path), apart, save_as_external_data=True, location="weights", size_threshold=256
    )
    assert (apart.parent / "weights").stat().st_size > 1000
    digests = [
        [c.brick.digest for c in cuts_of(read(file)) if c.brick.why_private is None]
        for file in (path, apart)
    ]
    assert digests[0] == digests[1]
    out, database = tmp_path / "out", tmp_path / "db"
    words = ["bricks", str(apart), "--rounds", "1", "--database", str(database)]
    assert main([*words, "--out", str(out)]) == 0


def test_sizes_of_a_step_come_from_its_manifest(tmp_path: Path) -> None:
    """Bug: the number of frames in a sequence was mistaken for the size of a frame, and the state had no batch size."""
    from tests.builders.models import recurrent_nets

    path = recurrent_nets.gru_time_major(tmp_path / "m.onnx", None, None)
    manifest = tmp_path / "m.yaml"
    manifest.write_text(manifest_of(path, manifest, {}))
    graph = job._cut(str(manifest), BrickOptions(batch=2), ()).graph
    assert graph is not None
    assert [graph.tensors[name].shape for name in ("x", "state")] == [(1, 2, 6), (1, 2, 5)]
