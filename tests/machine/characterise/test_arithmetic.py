"""Products are right, peaks are the highest rates, and evidence decides whether the matrix unit is used."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.explain.machine import arithmetic
from harness.machine.characterise import matrix_unit as mu
from harness.machine.characterise import peaks
from harness.machine.characterise.arithmetic import scan, segments
from harness.machine.characterise.arithmetic.libraries import torch as torch_library
from harness.machine.characterise.arithmetic.libraries.operations import (
    Filter,
    library,
    relative_error,
)
from harness.machine.characterise.arithmetic.reduction import Reduction
from harness.machine.characterise.arithmetic.scan import Scan
from harness.machine.characterise.measured import Measured, from_json

VNNI = ["avx512_vnni", "avx512_bf16", "avx512f"]


@pytest.mark.parametrize("benchmark", [Reduction, Scan])
def test_sums_as_matrix_products_are_right_to_1e_5(benchmark: Any) -> None:
    """Checks requirement TP3: every segment size, compared with native sums."""
    points = list(benchmark().points(1))
    assert {p.settings["segment"] for p in points} == {*segments.SEGMENTS}
    assert {p.settings["way"] for p in points} == {*segments.WAYS}
    for point in points[:2] if benchmark is Scan else points:
        with point.open() as ready:
            ready.call()
            assert ready.facts["relative_error"] < 1e-5


@given(st.integers(1, 5), st.sampled_from([1, 16, 64, 128, 1024]))
def test_a_scan_of_blocks_is_the_scan(count: int, segment: int) -> None:
    rows = np.random.default_rng(count).random((count, segment), dtype=np.float32)
    out = np.empty_like(rows)
    scan.products(rows, out)()
    right = rows.cumsum(axis=1, dtype=np.float64)
    assert segments.largest_error(out, right) < 1e-5


@pytest.mark.parametrize("name", ["numpy", "ort"])
def test_matrix_products_and_convolutions_are_correct(name: str) -> None:
    if name == "ort":
        pytest.importorskip("onnxruntime")
        pytest.importorskip("onnx")
    assert library(name).product(64, "fp32", 1).facts["relative_error"] < 1e-6
    if name == "ort":
        assert library(name).product(64, "int8", 1).facts["relative_error"] == 0.0
        library(name).convolution(Filter(1, 8, 6), "int8", 1).call()
        library(name).convolution(Filter(1, 8, 6), "fp32", 1).call()


def test_the_error_of_equal_answers_is_0() -> None:
    assert relative_error(np.array([1, 2]), np.array([1.0, 2.0])) == 0.0
    assert relative_error(np.array([1.0, 3.0]), np.array([1.0, 2.0])) == 0.5


@pytest.mark.parametrize(
    ("precision", "flags", "kernels", "ratio", "use", "evidence"),
    [
        ("int8", VNNI, "", 3.7, mu.USED, "3.70 times the fp32 peak, with avx512_vnni: impossible"),
        ("int8", VNNI, "", 1.2, mu.NOT_USED, "no more than without it"),
        ("int8", VNNI, "", 1.8, mu.UNKNOWN, "possible either way"),
        ("int8", VNNI, "", None, mu.UNKNOWN, "the fp32 rate is missing"),
        ("int8", VNNI, "matmul brg:avx512_core_vnni", 0.5, mu.USED, "kernel matmul brg"),
        ("int8", ["avx2"], "", 3.0, mu.NOT_USED, "the processor has none of amx_int8"),
        ("int8", None, "", 3.0, mu.UNKNOWN, "lists no instruction sets"),
        ("int8", VNNI, "FullyConnected brgemm_avx512_I8", None, mu.USED, "brgemm_avx512_I8"),
        ("bf16", VNNI, "matmul brg_matmul:avx512_core_bf16", None, mu.USED, "avx512_core_bf16"),
        ("bf16", VNNI, "", 0.9, mu.NOT_USED, "no more than without it"),
        ("bf16", VNNI, "matmul ref:any", 2.0, mu.NOT_USED, "kernel matmul ref:any"),
        ("fp32", VNNI, "matmul brg:avx512_core", 1.0, mu.NOT_USED, "no unit"),
    ],
)
def test_the_matrix_unit_is_used_not_used_or_unknown_with_the_evidence(
    precision: str, flags: Any, kernels: str, ratio: Any, use: str, evidence: str
) -> None:
    """Checks requirement TP4."""
    verdict = mu.verdict(precision, flags, kernels, ratio)
    assert verdict.use == use
    assert evidence in verdict.evidence


def test_the_kernels_of_onednn_are_those_that_were_executed() -> None:
    printed = (
        "onednn_verbose,v1,info,oneDNN v3.7\n"
        "onednn_verbose,v1,primitive,exec,cpu,reorder,jit:uni,undef\n"
        "onednn_verbose,v1,primitive,create:cache_miss,cpu,matmul,ref:any,undef\n"
        "onednn_verbose,v1,primitive,exec,cpu,matmul,brg:avx512_core_bf16,undef\n"
        "onednn_verbose,v1,primitive,exec,cpu,gemm_api,,undef\n"
    )
    assert torch_library.implementations(printed) == "matmul brg:avx512_core_bf16"


def points(**rates: float) -> list[Measured]:
    """rates: in GFLOP/s, named library_precision."""
    made = {}
    for name, rate in rates.items():
        library_name, precision = name.split("_")
        settings = {"library": library_name, "precision": precision, "side": 256, "threads": 1}
        made[name] = {
            "benchmark": "gemm",
            "settings": settings,
            "work": 1e9,
            "unit": "FLOP",
            "repetitions_ns": [2e9 / rate, 3e9 / rate],
            "fastest_ns": 1e9 / rate,
            "facts": {},
        }
    return from_json(made)


def test_the_peak_is_the_fastest_call_of_any_library() -> None:
    found = peaks.arithmetic(points(ort_fp32=100, torch_fp32=110, ort_int8=400))
    assert found["fp32", 1].per_s == pytest.approx(110e9)
    assert found["fp32", 1].point == "gemm/torch/fp32/256/1"
    assert found["int8", 1].per_s == pytest.approx(400e9)


def test_a_rate_is_compared_with_the_fp32_peak_of_all_libraries() -> None:
    """Bug: a library whose fp32 measurement was disturbed seemed to use the matrix unit even at a low int8 rate."""
    every = points(ort_fp32=100, torch_fp32=50, torch_int8=180, ort_int8=400)
    content = {"instruction_sets": VNNI}
    found = {point.name: arithmetic.unit_of(point, every, content) for point in every}
    assert found["gemm/ort/int8/256/1"] == (
        "used",
        "4.00 times the fp32 peak, with avx512_vnni: impossible without it",
    )
    assert found["gemm/torch/int8/256/1"].use == "unknown"


def test_a_low_rate_with_other_programs_proves_nothing() -> None:
    verdict = mu.verdict("int8", VNNI, "", 0.5, is_disturbed=True)
    assert verdict.use == mu.UNKNOWN
    assert "something else ran" in verdict.evidence
    assert mu.verdict("int8", VNNI, "", 3.0, is_disturbed=True).use == mu.USED


def test_a_copied_byte_is_read_and_written() -> None:
    settings = {"bytes": 2**26, "state": "warm", "threads": 1}
    point = {"benchmark": "memory-copy", "settings": settings, "work": 2**26, "facts": {}}
    (copy,) = from_json({"p": {**point, "fastest_ns": 2**26}})
    assert peaks.memory([copy])[1].per_s == pytest.approx(2e9)
