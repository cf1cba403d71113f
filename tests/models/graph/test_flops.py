"""MACs, FLOPs and bytes agree with values calculated by hand."""

from pathlib import Path
from typing import Any

import pytest

from harness.models.graph import onnx_file
from harness.models.graph.flop_rules import Operand
from harness.models.graph.flops import Cost, cost, coverage, graph_costs, total
from harness.models.made import zoo


def _f32(*shape: int, weight: bool = False) -> Operand:
    return Operand(shape, "float32", weight)


IMAGE = _f32(1, 3, 224, 224)


@pytest.mark.parametrize(
    ("op_type", "attributes", "inputs", "output", "macs", "flops"),
    [
        # ResNet's first layer: each of the 112 * 112 * 64 outputs has 3 * 7 * 7 taps.
        ("Conv", {}, [IMAGE, _f32(64, 3, 7, 7)], _f32(1, 64, 112, 112), 118_013_952, 236_027_904),
        # MobileNet's depthwise layer: the weights (Cout, Cin / group, 3, 3) give 9 taps per output, plus a bias.
        ("Conv", {"group": 32}, [_f32(1, 32, 112, 112), _f32(32, 1, 3, 3), _f32(32)], _f32(1, 32, 112, 112), 3_612_672, 7_225_344 + 401_408),
        # A dilated kernel also has nine weights.
        ("Conv", {"dilations": [2, 2]}, [_f32(1, 8, 20, 20), _f32(4, 8, 3, 3)], _f32(1, 4, 16, 16), 73_728, 147_456),
        ("QLinearConv", {}, [_f32(1, 8, 4, 4), _f32(), _f32(), _f32(2, 8, 1, 1), _f32(), _f32(), _f32(), _f32()], _f32(1, 2, 4, 4), 256, 512),
        ("ConvTranspose", {}, [_f32(1, 2, 3, 3), _f32(2, 4, 2, 2)], _f32(1, 4, 4, 4), 18 * 16, 36 * 16),
        ("FusedConv", {"activation": "Relu"}, [_f32(1, 8, 4, 4), _f32(2, 8, 1, 1), None, _f32(1, 2, 4, 4)], _f32(1, 2, 4, 4), 256, 512 + 32 + 32),
        ("Gemm", {"transB": 1}, [_f32(2, 8), _f32(5, 8), _f32(5)], _f32(2, 5), 80, 170),
        ("Gemm", {"transA": 1}, [_f32(8, 2), _f32(8, 5)], _f32(2, 5), 80, 160),
        ("MatMul", {}, [_f32(3, 4, 7), _f32(3, 7, 2)], _f32(3, 4, 2), 168, 336),
        ("LSTM", {}, [_f32(5, 2, 3), _f32(1, 16, 3), _f32(1, 16, 4)], _f32(5, 1, 2, 4), 1120, 2720),
        ("Relu", {}, [_f32(2, 5)], _f32(2, 5), 0, 10),
        ("Sum", {}, [_f32(2, 5)] * 3, _f32(2, 5), 0, 20),
        ("Softmax", {}, [_f32(2, 5)], _f32(2, 5), 0, 50),
        ("MaxPool", {"kernel_shape": [3, 3]}, [_f32(1, 1, 6, 6)], _f32(1, 1, 2, 2), 0, 36),
        ("GlobalAveragePool", {}, [_f32(1, 4, 7, 7)], _f32(1, 4, 1, 1), 0, 196),
        ("LRN", {"size": 5}, [_f32(1, 4, 2, 2)], _f32(1, 4, 2, 2), 0, 160),
        ("Resize", {"mode": b"linear"}, [_f32(1, 1, 2, 2)], _f32(1, 1, 4, 4), 0, 128),
        ("Transpose", {}, [_f32(2, 5)], _f32(5, 2), 0, 0),
    ],
)  # fmt: skip
def test_node_has_its_macs_and_flops(
    op_type: str,
    attributes: dict[str, Any],
    inputs: list[Operand | None],
    output: Operand,
    macs: int,
    flops: int,
) -> None:
    found = cost(op_type, attributes, inputs, [output])
    assert (found.macs, found.flops) == (macs, flops)


def test_an_operation_without_a_rule_has_no_numbers_rather_than_zero() -> None:
    found = cost("NonMaxSuppression", {}, [_f32(1, 5, 4)], [_f32(3, 3)])
    assert (found.macs, found.flops) == (None, None)
    assert found.bytes == 80 + 36


@pytest.mark.parametrize("inputs", [[None, _f32(4, 3)], [], [_f32()]])
def test_a_node_whose_shapes_are_not_known_has_no_numbers(inputs: list[Operand | None]) -> None:
    assert cost("MatMul", {}, inputs, [_f32(2, 3)]).macs is None


def test_bytes_of_weights_inputs_and_outputs() -> None:
    given = [_f32(1, 8, 4, 4), _f32(2, 8, 1, 1, weight=True), _f32(2, weight=True)]
    found = cost("Conv", {}, given, [_f32(1, 2, 4, 4)])
    assert (found.weight_bytes, found.input_bytes, found.output_bytes) == (72, 512, 128)


def test_integers_of_half_a_byte_are_rounded_up_to_whole_ones() -> None:
    assert Operand((3,), "int4").bytes == 2


def test_a_view_moves_nothing_and_an_embedding_reads_only_its_rows() -> None:
    assert cost("Reshape", {}, [_f32(2, 5)], [_f32(10)]).bytes == 0
    table = _f32(30_000, 8, weight=True)
    found = cost("Gather", {}, [table, Operand((4,), "int64")], [_f32(4, 8)])
    assert found == Cost(0, 0, 128, 32, 128)


def test_coverage_counts_nodes_and_time_and_names_unknown_operators() -> None:
    shape = [_f32(2, 5)]
    op_types = ["Relu", "Mystery", "Mystery"]
    costs = [cost(op, {}, shape, shape) for op in op_types]
    found = coverage(op_types, costs, [90.0, 4.0, 6.0])
    assert (found.modelled, found.nodes, found.missing) == (1, 3, {"Mystery": 2})
    assert found.time_share == pytest.approx(0.9)
    assert coverage(op_types, costs).time_share is None
    assert total(costs).flops == 10


@pytest.mark.parametrize(("name", "gmacs"), [("mobilenet_v1", 0.569), ("mobilenet_v2", 0.301)])
def test_macs_of_whole_models(
    name: str, gmacs: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sources: Howard et al. 2017 and Sandler et al. 2018, with 569 and 300 million multiply-adds."""
    found = _costs(name, tmp_path, monkeypatch)
    assert total(found).macs == pytest.approx(gmacs * 1e9, rel=0.01)
    assert all(c.flops is not None for c in found)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "gmacs"), [("resnet50_v1", 3.865), ("vgg16", 15.47)])
def test_macs_of_large_models(
    name: str, gmacs: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Source: Benanza, table I. ResNet-50 has 3.87 G; VGG-16 has 15.47 G by definition, but 15.38 G in the table."""
    assert total(_costs(name, tmp_path, monkeypatch)).macs == pytest.approx(gmacs * 1e9, rel=0.003)


def _costs(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Cost]:
    pytest.importorskip("onnx")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return graph_costs(onnx_file.read(zoo.make(name)))
