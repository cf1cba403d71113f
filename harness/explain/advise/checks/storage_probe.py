"""Loads and runs a model once in a child process, and reports times and peak memory.

This module imports as little as possible, because each import increases the peak memory.
"""

import re
import time
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from harness.explain.advise.layers.settings import parse_setting
from harness.explain.advise.layers.timing import open_session


def probe(request: Mapping[str, Any]) -> dict[str, int]:
    """Returns times in ns, excluding imports, and the peak memory in bytes. request: contains the keys `model` (a
    file), `feeds` (an npz file with its inputs) and `setting`.
    """
    import onnxruntime as ort

    with np.load(request["feeds"], allow_pickle=False) as file:
        feeds = {name: file[name] for name in file.files}
    ort.set_default_logger_severity(3)
    marks = [time.perf_counter_ns()]
    session = open_session(Path(request["model"]), parse_setting(request["setting"]))
    marks.append(time.perf_counter_ns())
    for _ in range(2):
        session.run(None, feeds)
        marks.append(time.perf_counter_ns())
    load_ns, first_ns, second_ns = (b - a for a, b in pairwise(marks))
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak_bytes = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
    times = {"load_ns": load_ns, "first_run_ns": first_ns, "second_run_ns": second_ns}
    return {**times, "peak_bytes": peak_bytes}
