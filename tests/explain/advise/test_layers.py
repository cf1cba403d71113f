"""Each layer is cut from a model and run alone, and its time is stored in a database. The sum of the layers' times is a
lower bound for the model's time.
"""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.errors import ConfigError
from harness.explain.advise.checks import operators
from harness.explain.advise.checks.operators import errors
from harness.explain.advise.checks.self_checks import repeatability
from harness.explain.advise.checks.weights import pattern
from harness.explain.advise.layers import bench
from harness.explain.advise.layers.bench import LayerTimes
from harness.explain.advise.layers.settings import PARALLEL, Setting, candidates, parse_setting
from harness.explain.advise.layers.units import units
from harness.explain.advise.output.page import _weights
from harness.explain.kernels.ort_events import kernels_by_run
from harness.explain.pieces.cut import Cut
from harness.explain.pieces.database import Database
from harness.explain.pieces.lower_bound import critical_path, makespan_ns
from harness.explain.pieces.made_up import activations
from harness.models.graph import onnx_file
from harness.models.graph.graph import Tensor
from harness.models.precision.onnx import quantise, recipe

onnx = pytest.importorskip("onnx")
TWO_BRANCHES = ((), (0,), (0,), (1, 2))


def _model(path: Path, *, stride: int = 1, seed: int = 0, prefix: str = "") -> Path:
    """Writes Conv, BatchNormalization and Relu, twice in a row."""
    random = np.random.default_rng(seed)
    helper, numpy_helper = onnx.helper, onnx.numpy_helper
    nodes, weights, end = [], [], "x"
    for i in range(2):
        conv, norm, relu = (f"{prefix}{op}{i}" for op in ("conv", "norm", "relu"))
        kernel = random.standard_normal((4, 4, 3, 3)).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"{conv}_w"))
        names = [f"{norm}_{n}" for n in "abcd"]
        weights += [
            numpy_helper.from_array(np.abs(random.standard_normal(4)).astype(np.float32), n)
            for n in names
        ]
        nodes += [
            helper.make_node(
                "Conv", [end, f"{conv}_w"], [conv], strides=[stride] * 2, pads=[1] * 4
            ),
            helper.make_node("BatchNormalization", [conv, *names], [norm]),
            helper.make_node("Relu", [norm], [relu]),
        ]
        end, stride = relu, 1
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n", 4, 8, 8])
    y = helper.make_tensor_value_info(end, onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "toy", [x], [y], weights)
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


FUSED = ([0, 1, 2], [3, 4, 5])


def test_units_share_a_key_whatever_their_names_and_weights(tmp_path: Path) -> None:
    first = onnx_file.read(_model(tmp_path / "a.onnx"))
    second = onnx_file.read(_model(tmp_path / "b.onnx", seed=1, prefix="other"))
    keys = {unit.key for graph in (first, second) for unit in units(graph, FUSED)}
    assert len(keys) == 1
    strided = units(onnx_file.read(_model(tmp_path / "c.onnx", stride=2)), FUSED)
    # Both units have new keys, because the second layer has a different shape.
    assert len({unit.key for unit in strided} - keys) == 2


def test_units_hold_every_layer_once_and_need_earlier_units(tmp_path: Path) -> None:
    graph = onnx_file.read(_model(tmp_path / "a.onnx"))
    layers = units(graph, [[0, 1], [1, 2]])
    assert [unit.to_json()["nodes"] for unit in layers] == [[0, 1, 2], [3], [4], [5]]
    assert [unit.needs for unit in layers] == [(), (0,), (1,), (2,)]


def test_a_group_is_split_at_a_different_operator(tmp_path: Path) -> None:
    graph = onnx_file.read(_model(tmp_path / "a.onnx"))
    nodes = [unit.to_json()["nodes"] for unit in units(graph, [[0, 2]])]
    assert nodes == [[i] for i in range(6)]


def test_a_unit_runs_alone_without_the_model_s_weights(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    path = _model(tmp_path / "a.onnx")
    graph = onnx_file.read(path)
    piece = Cut(graph, graph.nodes[:3]).model()
    onnx.checker.check_model(piece, full_check=True)
    original = {t.raw_data for t in onnx.load(path).graph.initializer}
    weights = [t for t in piece.graph.initializer if len(t.dims) > 1]
    assert weights
    assert all(t.raw_data not in original for t in weights)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "bool"])
def test_a_made_up_scalar_is_an_array(dtype: str) -> None:
    """Bug: made-up inputs were NumPy scalars, which ONNX Runtime refuses."""
    value = activations(np.random.default_rng(0), Tensor(dtype, ()))
    assert isinstance(value, np.ndarray)
    assert (value.dtype, value.shape) == (np.dtype(dtype), ())


def test_only_missing_measurements_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(bench, "_ENOUGH_NS", 0)
    graph = onnx_file.read(_model(tmp_path / "a.onnx"))
    parts = units(graph, FUSED)
    settings = [Setting(), Setting(graph="off")]
    database = Database(tmp_path / "l.sqlite", {"cpu": "one"}, "runtime 1")
    times, counted = bench.measure(parts, settings, database, decided={}, passes=1)
    # Only one of the two layers is measured, because they are equal.
    assert (counted.ran, counted.found) == (1 * 2, 0)
    (alone,) = times.values()
    assert alone[Setting(graph="off")].kernels == ("Conv", "BatchNormalization", "Relu")
    assert all(t.least_ns("wall") for t in alone.values())
    strided = onnx_file.read(_model(tmp_path / "b.onnx", stride=2))
    both = [*parts, *units(strided, FUSED)]
    again = bench.measure(both[:2], settings, database, decided={}, passes=1)
    assert again[1] == bench.Counts(0, 2, 0)
    elsewhere = Database(tmp_path / "l.sqlite", {"cpu": "another"}, "runtime 1")
    assert elsewhere.read([parts[0].key], str(Setting())) == {}
    assert elsewhere.elsewhere([parts[0].key]) == 2


def test_a_layer_that_cannot_be_run_has_a_reason(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    graph = onnx_file.read(_model(tmp_path / "a.onnx"))
    layers = units(graph, FUSED)
    database = Database(tmp_path / "l.sqlite", {"cpu": "one"}, "runtime 1")
    unknown = Setting(graph="all", precision="unknown")
    times, _ = bench.measure(layers[:1], [unknown], database, decided={}, passes=1)
    assert times[layers[0].key][unknown].least_ns("wall") is not None
    graph.tensors.pop("x")  # type: ignore[attr-defined]
    failing, _ = bench.measure(units(graph, FUSED)[:1], [Setting()], database, decided={}, passes=1)
    (timed,) = (by_setting[Setting()] for by_setting in failing.values())
    assert timed.failed == "Conv: the type of a tensor is undefined, not numeric"


def _event(op: str, at_us: int, us: int) -> dict[str, Any]:
    timed = {"cat": "Node", "name": f"{op}_kernel_time", "ts": at_us, "dur": us}
    return timed | {"args": {"op_name": op}}


def test_border_kernels_of_a_layer_are_counted_separately() -> None:
    runs = [[_event("ReorderInput", 0, 7), _event("Conv", 8, 20), _event("ReorderOutput", 30, 5)]]
    timed = bench.times_from(runs, [(64_000, 32_000)], ["Conv", "Relu"])
    assert (timed.kernel_ns, timed.border_ns) == ((20_000,), (12_000,))
    # The call used a core for half of its time.
    assert timed.least_ns("cpu") == pytest.approx(10_000)
    own = bench.times_from([[_event("Transpose", 0, 3)]], [(4_000, 4_000)], ["Transpose"])
    assert own.border_ns == (0,)


def _run_of(at_us: int, us: int) -> dict[str, Any]:
    return {"name": "model_run", "ts": at_us, "dur": us, "args": {}}


def test_kernels_inside_of_another_are_part_of_it() -> None:
    kernels = [_event("Relu", 12, 3), _event("If", 10, 8), _event("Relu", 18, 2)]
    events = [*kernels, _run_of(9, 12), _event("Relu", 31, 1), _run_of(30, 5)]
    runs = kernels_by_run(events, 2)
    assert [[e["args"]["op_name"] for e in run] for run in runs] == [["If", "Relu"], ["Relu"]]


def test_a_truncated_profile_is_refused() -> None:
    with pytest.raises(ConfigError, match="the profile has only 1 of 2 runs"):
        kernels_by_run([_run_of(0, 5)], 2)


def test_a_newer_or_invalid_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "no.sqlite").write_bytes(b"text" * 1000)
    with pytest.raises(ConfigError, match="pass a different --database"):
        Database(tmp_path / "no.sqlite", {}, "r")
    with closing(sqlite3.connect(tmp_path / "newer.sqlite")) as db:
        db.execute("PRAGMA user_version = 99")
    with pytest.raises(ConfigError, match="it has schema 99, but this harness supports 2"):
        Database(tmp_path / "newer.sqlite", {}, "r")


def test_runs_of_two_passes_are_joined_even_after_a_failure() -> None:
    one, two = (
        LayerTimes((3,), (3,), (3,), (0,), ("Conv",)),
        LayerTimes((2,), (2,), (2,), (0,), ("Conv",)),
    )
    assert one.joined(two).kernel_ns == (3, 2)
    assert one.joined(LayerTimes(failed="no memory")) == one._replace(passes=2)
    assert LayerTimes.from_json(one._asdict()) == one


def test_a_chain_is_its_own_critical_path() -> None:
    chain = critical_path([3.0, 1.0, 2.0], [(), (0,), (1,)])
    assert (chain.ns, chain.units) == (6.0, (0, 1, 2))


def test_the_critical_path_matches_a_hand_computation() -> None:
    chain = critical_path([3.0, 5.0, 2.0, 1.0], TWO_BRANCHES)
    assert (chain.ns, chain.units) == (9.0, (0, 1, 3))
    assert makespan_ns([3.0, 5.0, 2.0, 1.0], TWO_BRANCHES, 2) == 9.0
    assert makespan_ns([3.0, 5.0, 2.0, 1.0], TWO_BRANCHES, 1) == 11.0


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=12), st.randoms(), st.integers(1, 4))
def test_the_makespan_lies_between_the_critical_path_and_the_sum(
    times: list[float], random: Any, workers: int
) -> None:
    needs = [[j for j in range(i) if random.random() < 0.3] for i in range(len(times))]
    span = makespan_ns(times, needs, workers)
    assert critical_path(times, needs).ns <= span * (1 + 1e-9) + 1e-6
    assert span <= sum(times) * (1 + 1e-9) + 1e-6


def test_settings_are_read_back_and_differ_from_now_in_one_thing() -> None:
    now = Setting("all", 1)
    others = candidates(now, ["graph", "threads", "execution", "precision"], 2)
    assert [s.changes(now) for s in others] == [
        *("graph=off", "graph=basic", "graph=extended", "threads=2"),
        *("threads=2 execution=parallel", "precision=int8"),
    ]
    assert [parse_setting(str(s)) for s in others] == others
    assert others[4].kernel == now
    assert candidates(now._replace(execution=PARALLEL, threads=2), ["execution"], 2) == [
        now._replace(threads=2)
    ]
    with pytest.raises(ValueError, match="is not a setting"):
        parse_setting("graph=all")


@pytest.mark.parametrize(
    ("op_type", "shapes"),
    [("MatMul", [(3, 4), (4, 5)]), ("Softmax", [(3, 9)]), ("Conv", [(1, 2, 5, 5), (3, 2, 3, 3)])],
)
def test_an_operator_matches_the_reference_and_a_wrong_one_is_caught(
    op_type: str, shapes: list[tuple[int, ...]]
) -> None:
    ort = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    feeds = {f"x{i}": random.standard_normal(s).astype(np.float32) for i, s in enumerate(shapes)}
    values = [
        onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, v.shape)
        for n, v in feeds.items()
    ]
    out = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    node = onnx.helper.make_node(op_type, list(feeds), ["y"])
    graph = onnx.helper.make_graph([node], "one", values, [out])
    model = onnx.helper.make_model(
        graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8
    )
    ours = ort.InferenceSession(model.SerializeToString()).run(None, feeds)
    theirs = pytest.importorskip("onnx.reference").ReferenceEvaluator(model).run(None, feeds)
    assert errors(ours, theirs)["passed"]
    assert not errors([ours[0] + np.float32(1e-3)], theirs)["passed"]
    assert not errors([ours[0][..., :1]], theirs)["passed"]
    broken = ours[0].copy()
    broken.flat[0] = np.nan
    assert not errors([broken], theirs)["passed"]


@pytest.mark.parametrize(("opset", "attributes"), [(11, {}), (11, {"axis": 1}), (13, {})])
def test_the_reference_of_an_old_softmax_treats_its_input_as_a_matrix(
    opset: int, attributes: dict[str, int]
) -> None:
    """Bug: ONNX's reference took the last axis, so that every Softmax of an older model was DIFFERENT."""
    node = onnx.helper.make_node("Softmax", ["x"], ["y"], **attributes)
    ports = [
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 10, 1, 1])
        for name in "xy"
    ]
    graph = onnx.helper.make_graph([node], "g", ports[:1], ports[1:])
    opsets = [onnx.helper.make_opsetid("", opset)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8)
    feeds = {"x": np.arange(10, dtype=np.float32).reshape(1, 10, 1, 1)}
    session = pytest.importorskip("onnxruntime").InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    ours = session.run(None, feeds)
    theirs = operators._reference(onnx.reference.ReferenceEvaluator, model, feeds)
    assert errors(ours, theirs)["passed"]


def test_int8_distinguishes_a_thousand_unlikely_classes(tmp_path: Path) -> None:
    """Bug: a quantised Softmax answered 0 for every class (ONNX Runtime fixes its scale at 1 / 256)."""
    ort = pytest.importorskip("onnxruntime")
    random = np.random.default_rng(0)
    weights = onnx.numpy_helper.from_array(
        random.standard_normal((16, 1000)).astype(np.float32) * np.float32(0.1), "w"
    )
    nodes = [
        onnx.helper.make_node("MatMul", ["x", "w"], ["a"]),
        onnx.helper.make_node("Softmax", ["a"], ["y"]),
    ]
    x, y = (
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, size])
        for name, size in (("x", 16), ("y", 1000))
    )
    graph = onnx.helper.make_graph(nodes, "flat", [x], [y], [weights])
    # Opset 9 is too old for scales per channel, so `advise` must raise it.
    opsets = [onnx.helper.make_opsetid("", 9)]
    path = tmp_path / "flat.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    feeds = [{"x": random.standard_normal((1, 16)).astype(np.float32)} for _ in range(4)]
    quantise(path, tmp_path / "int8.onnx", feeds, recipe("int8", path))
    ours, theirs = (
        ort.InferenceSession(str(file)).run(None, feeds[0])[0]
        for file in (path, tmp_path / "int8.onnx")
    )
    assert np.linalg.norm(ours - theirs) < 0.05 * np.linalg.norm(ours)
    assert any(
        n.op_type == "DequantizeLinear" for n in onnx.load(tmp_path / "int8.onnx").graph.node
    )


def test_weights_report_zeros_and_the_loss_of_eight_bits() -> None:
    values = np.zeros((2, 100), np.float32)
    values[0, :50] = np.linspace(0.5, 1, 50)
    values[1, :50] = np.linspace(0.005, 0.01, 50)
    row = pattern(values, axis=0)
    assert row["zero_share"] == 0.5
    assert row["channel_ranges"] == pytest.approx([0.01, 0.505, 1.0])
    assert sum(row["histogram"]["counts"]) == 200
    assert row["snr_db"]["per_channel"] > row["snr_db"]["per_tensor"]
    # Bug: the style attributes of the plot's colour bar violated the policy of browse.
    drawn = _weights([{"name": "w", "elements": 200, **row}])
    assert "showscale" not in drawn.data[0]["marker"]
    assert "A stronger colour is a larger share, up to " in drawn.about
    assert pattern(np.zeros((2, 4), np.float32), 0)["snr_db"]["per_tensor"] is None
    assert "failed" in pattern(np.full((2, 2), np.inf, np.float32), 0)


class _Session:
    def __init__(self, noise: float) -> None:
        self._noise, self._count = noise, 0

    def run(self, _names: object, _feeds: object) -> list[Any]:
        self._count += 1
        return [np.array([1.0, 2.0 + self._noise * (self._count % 2)], np.float32)]


def test_reruns_that_differ_are_counted() -> None:
    (same,) = repeatability(_Session(0), {}, ["y"])["outputs"]
    assert (same["varying"], same["variance"]) == (0, 0.0)
    (other,) = repeatability(_Session(0.5), {}, ["y"])["outputs"]
    assert (other["varying"], other["values"]) == (1, 2)
    assert other["variance"] == pytest.approx(0.0625)
