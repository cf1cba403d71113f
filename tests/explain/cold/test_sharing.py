"""Ways to share weights: the memory of two workers, their answers, and the estimated benefit."""

import json
import mmap
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cli.main import main
from harness.explain.cold.benefit import measure
from harness.explain.cold.benefit.estimate import Constants, benefit_ns, pays
from harness.explain.cold.sharing import memory, ways
from harness.explain.cold.sharing.measure import compare
from harness.models.manifest.model import MODELS_DIR
from harness.search.runtimes import choice

ALL = (
    *("ort", "openvino", "litert", "torch", "tensorflow", "executorch", "trees"),
    *("ncnn", "mnn", "tract"),
)
CONSTANTS = Constants(read_bytes_per_s=5e9, given_ns=40_000, touched_ns=2_000)


def test_every_way_is_tried_on_every_framework_or_has_a_reason() -> None:
    found = list(ways.pairs(dict.fromkeys(ALL)))
    assert len(found) == len(ALL) * len(ways.WAYS)
    assert all(reason for _, _, reason in found if reason is not None)
    tried = {(way.name, backend) for way, backend, reason in found if reason is None}
    mapped = {backend for way, backend in tried if way == ways.MAPPED}
    assert mapped == {"ort", "openvino", "litert", "torch"}


def test_pages_that_two_processes_map_count_once() -> None:
    size = 64 << 20
    shared = mmap.mmap(-1, size)
    shared.write(bytes(size))
    before = memory.pss_bytes([os.getpid()])
    ours, theirs = os.pipe()
    pid = os.fork()
    if not pid:
        os.read(ours, 1)
        os._exit(0)
    try:
        assert memory.pss_bytes([os.getpid(), pid]) - before < size / 2
    finally:
        os.write(theirs, b"x")
        os.waitpid(pid, 0)
        os.close(ours)
        os.close(theirs)


def test_the_memory_of_a_process_that_has_ended_is_an_error() -> None:
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    with pytest.raises(OSError, match="smaps_rollup"):
        memory.pss_bytes([pid])


@pytest.mark.parametrize(("other", "difference"), [([1.0, 2.0], 0.0), ([1.0, 1.5], 0.25)])
def test_answers_are_compared_by_their_bits_and_their_largest_difference(
    other: list[float], difference: float, tmp_path: Path
) -> None:
    for name, values in (("a", [1.0, 2.0]), ("b", other)):
        np.savez(tmp_path / name, np.array(values, np.float32))
    assert compare(tmp_path / "a.npz", tmp_path / "b.npz") == difference


def test_a_difference_of_one_bit_is_not_zero(tmp_path: Path) -> None:
    for name, value in (("a", 0.0), ("b", -0.0)):
        np.savez(tmp_path / name, np.array([value], np.float32))
    assert 0 < compare(tmp_path / "a.npz", tmp_path / "b.npz") < 1e-300


@pytest.mark.slow
def test_sharing_pays_for_vgg16_and_not_for_a_model_below_a_megabyte(tmp_path: Path) -> None:
    """Checks requirement TR7 with constants measured on this machine."""
    constants = measure.measure_constants(tmp_path)
    found = measure.benefit(MODELS_DIR / "digits.onnx", tmp_path)
    owner_bytes = found["owner_bytes"]
    assert not pays(found["predicted_ns"], found["bytes"], owner_bytes)
    vgg16 = [553_428_640 // 28] * 28
    assert pays(benefit_ns(vgg16, constants), sum(vgg16), owner_bytes)


def test_many_small_objects_cost_more_than_they_save() -> None:
    assert benefit_ns([100_000] * 10, CONSTANTS) < 0 < benefit_ns([1_000_000], CONSTANTS)


@given(st.lists(st.integers(1, 10**9), min_size=1, max_size=50))
def test_objects_pay_only_above_the_break_even_size(sizes: list[int]) -> None:
    even = CONSTANTS.even_bytes
    assert benefit_ns([size for size in sizes if size > even], CONSTANTS) >= 0
    assert benefit_ns([size for size in sizes if size < even], CONSTANTS) <= 0


def test_the_objects_of_an_onnx_file_are_its_weights(tmp_path: Path) -> None:
    sizes, granularity = measure.objects(MODELS_DIR / "digits.onnx")
    assert granularity == "tensor"
    assert 0.9 * (MODELS_DIR / "digits.onnx").stat().st_size < sum(sizes)
    (tmp_path / "net.tflite").write_bytes(b"xyz")
    assert measure.objects(tmp_path / "net.tflite") == ([3], "file")


def test_sharing_is_measured_with_a_process_that_owns_the_weights(tmp_path: Path) -> None:
    constants = measure.measure_constants(tmp_path)
    assert constants.read_bytes_per_s > 1e7
    assert constants.given_ns > 0
    assert constants.touched_ns > 0
    assert not list(tmp_path.iterdir())


def _wide_net(path: Path) -> Path:
    """Writes two layers of 67 MB each with small activations."""
    onnx = pytest.importorskip("onnx")
    helper, kind, width = onnx.helper, onnx.TensorProto.FLOAT, 4096
    random = np.random.default_rng(0)
    weights = [
        onnx.numpy_helper.from_array(
            random.standard_normal((width, width), dtype=np.float32) / 64, name
        )
        for name in ("w1", "w2")
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["y"]),
        helper.make_node("MatMul", ["y", "w2"], ["z"]),
    ]
    ports = [[helper.make_tensor_value_info(name, kind, ["batch", width])] for name in ("x", "z")]
    graph = helper.make_graph(nodes, "wide", *ports, weights)
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def _rows(content: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(row["way"], row["backend"]): row for row in content["sharing"]}


@pytest.mark.slow
def test_workers_that_share_add_at_most_half_of_the_weights(tmp_path: Path) -> None:
    """Checks requirement TR3 with a network of 134 MB: mapped and forked workers share the weights, separate workers do
    not.
    """
    path = _wide_net(tmp_path / "wide.onnx")
    words = ["cold", str(path), "--trials", "1", "--runs", "2", "--skip", "formats"]
    assert main([*words, "--out", str(tmp_path / "out"), "--quiet"]) == 0
    content = json.loads((tmp_path / "out/cold.json").read_text())
    rows = _rows(content)
    for way in ways.WAYS:
        row = rows[way, "ort"]
        assert row["failed"] is None, way
        (one,) = row["rounds"]
        assert one["first"]["sha256"] == one["second"]["sha256"]
        share = one["of_model_bytes"] / row["size_bytes"]
        shares = way in (ways.MAPPED, ways.INITIALISERS, ways.FORK)
        assert (share <= ways.SHARED) == shares, (way, share)
    assert rows[ways.PROCESSES, "ort"]["difference"] == 0
    assert content["benefit"]["predicted_ns"] > 0
    assert content["benefit"]["saved_ns"] > 0


@pytest.mark.slow
def test_every_framework_shares_or_has_a_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["cold", "digits", "--trials", "1", "--runs", "2", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    rows = _rows(json.loads((tmp_path / "out/cold.json").read_text()))
    here = choice.readable("digits")
    assert set(rows) == {(way, backend) for way in ways.WAYS for backend in here}
    shown = capsys.readouterr().out
    for (way, backend), row in rows.items():
        if not row["rounds"]:
            assert f"{way} on {backend} is not possible: {row['failed']}" in shown
            continue
        (one,) = row["rounds"]
        assert one["second"]["first_ns"] > 0
        assert one["alone_bytes"] > 0
        assert row["difference"] < 1e-3
    for way, backend in ways.CANNOT:
        assert backend not in here or not rows[way, backend]["rounds"]
