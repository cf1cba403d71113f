"""Measures this machine's peaks: the rates of matrix products and of a large copy.

The products run on ONNX Runtime, whose library also computes the model's kernels, with the same
number of threads; the copy is NumPy's, in as many threads. The second operand is a constant, as a
model's weights are, which the library packs once.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from harness.explain.kernels.layers import Peaks
from harness.models.opened.ort_session import INTRA_OP_SPINNING, SessionSetup, open_session

_SIDES = (256, 512, 1024)
"""Sides of the square matrices: the smallest lie in one core's cache, the largest occupy many threads. On a
machine whose memory others use, 1024 reached 87 GFLOP/s, 256 reached 114.
"""

_COPY_BYTES = 64 * 2**20
"""Larger than the caches that one core has for itself."""

_REPEATS = 7


def measure(threads: int) -> Peaks:
    """The best of several: noise only slows. Takes about a second."""
    rates = [2 * side**3 / _product_s(side, threads) for side in _SIDES]
    return Peaks(max(rates), 2 * _COPY_BYTES / _copy_s(threads))


def _product_s(side: int, threads: int) -> float:
    """A small product may leave some of several threads idle: then its CPU time means nothing."""
    is_busy = threads == 1 or side == _SIDES[-1]
    repeats = _REPEATS * _SIDES[-1] // side
    return _best_s(_product(side, threads), threads if is_busy else 0, repeats)


def _best_s(call: Callable[[], object], threads: int, repeats: int = _REPEATS) -> float:
    """Uses CPU time where all threads work all the time. threads: 0 where some may be idle."""
    call()
    best = float("inf")
    for _ in range(repeats):
        cpu, begin = time.process_time(), time.perf_counter()
        call()
        wall_s = time.perf_counter() - begin
        cpu_s = time.process_time() - cpu
        best = min(best, wall_s, cpu_s / threads if threads else wall_s)
    return best


def _product(side: int, threads: int) -> Callable[[], object]:
    from onnx import TensorProto, helper, numpy_helper

    random = np.random.default_rng(0)
    matrices = [random.random((side, side), dtype=np.float32) for _ in range(2)]
    a, c = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [side, side]) for n in "ac")
    weights = [numpy_helper.from_array(matrices[1], "b")]
    node = helper.make_node("MatMul", ["a", "b"], ["c"])
    graph = helper.make_graph([node], "g", [a], [c], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    # Its threads may spin: a peak is what the machine can do, whatever the model's session leaves out.
    setup = SessionSetup(threads=threads, config={INTRA_OP_SPINNING: "1"})
    session = open_session(model.SerializeToString(), setup)
    return lambda: session.run(None, {"a": matrices[0]})


def _copy_s(threads: int) -> float:
    """A copied byte is one byte read and one byte written."""
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return _best_s(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts)), threads)
