"""Times a bare loop as the yardstick: `bare.py MODEL SECONDS INSTANCESxTHREADSxBATCH...` prints JSON."""

import json
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime as ort


def measure(model: str, seconds: float, plan: str) -> dict[str, object]:
    """Returns a plan's samples/s, and the median duration of its session.run calls in ns."""
    instances, threads, batch = map(int, plan.split("x"))
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    barrier = threading.Barrier(instances)

    def times_ns(_: int) -> "np.typing.NDArray[np.int64]":
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        name, (_, *shape) = session.get_inputs()[0].name, session.get_inputs()[0].shape
        rows = {name: np.random.default_rng(0).standard_normal((batch, *shape), np.float32)}
        barrier.wait()
        stamps = [time.perf_counter_ns()]
        while len(stamps) < 12 or stamps[-1] < stamps[0] + seconds * 1e9:
            session.run(None, rows)
            stamps.append(time.perf_counter_ns())
        return np.diff(stamps)[1:]  # the first run warms up the session, so its time is omitted

    with ThreadPoolExecutor(instances) as pool:
        ns = list(pool.map(times_ns, range(instances)))
    rate = sum(batch * 1e9 / of.mean() for of in ns)
    return {"plan": plan, "samples_per_s": rate, "p50_ns": np.median(ns[0]).item()}


print(json.dumps([measure(sys.argv[1], float(sys.argv[2]), plan) for plan in sys.argv[3:]]))
