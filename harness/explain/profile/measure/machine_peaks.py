"""What this machine can do: the rate of a large matrix product and of a large copy, measured.

The product runs on ONNX Runtime, whose library also computes the model's kernels, with the same
number of threads; the copy is NumPy's, in as many threads.
"""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from harness.explain.kernels.layers import Peaks
from harness.models.opened.ort_session import INTRA_OP_SPINNING, SessionSetup, open_session

_SIDE = 1024
"""Of the square matrices: 12 MB of operands, 2.1 GFLOP."""

_COPY_BYTES = 64 * 2**20
"""Larger than the caches that one core has for itself."""

_REPEATS = 7


def measure(threads: int) -> Peaks:
    """The best of several: peaks bound from above, and noise only slows. About a second."""
    flops = 2 * _SIDE**3
    return Peaks(flops / _best_s(_product(threads), threads), 2 * _COPY_BYTES / _copy_s(threads))


def _best_s(call: Callable[[], object], threads: int) -> float:
    """All threads work all the time: where others held them up, their CPU time tells."""
    call()
    best = float("inf")
    for _ in range(_REPEATS):
        cpu, begin = time.process_time(), time.perf_counter()
        call()
        wall_s = time.perf_counter() - begin
        best = min(best, wall_s, (time.process_time() - cpu) / threads)
    return best


def _product(threads: int) -> Callable[[], object]:
    from onnx import TensorProto, helper

    shape = [_SIDE, _SIDE]
    a, b, c = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "g", [a, b], [c])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    # Its threads may spin: a peak is what the machine can do, whatever the model's session leaves out.
    setup = SessionSetup(threads=threads, config={INTRA_OP_SPINNING: "1"})
    session = open_session(model.SerializeToString(), setup)
    random = np.random.default_rng(0)
    feeds = {name: random.random(shape, dtype=np.float32) for name in "ab"}
    return lambda: session.run(None, feeds)


def _copy_s(threads: int) -> float:
    """A byte copied is a byte read and a byte written."""
    source = np.ones(_COPY_BYTES, np.uint8)
    target = np.zeros_like(source)
    parts = list(zip(np.array_split(target, threads), np.array_split(source, threads), strict=True))
    with ThreadPoolExecutor(threads) as pool:
        return _best_s(lambda: list(pool.map(lambda pair: np.copyto(*pair), parts)), threads)
