"""A model loaded and run in a process of its own. Prints JSON: times, and the peak of its memory."""

import json
import re
import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np

from harness.core.console import show
from harness.explain.advise.layers.settings import parse_setting
from harness.explain.advise.layers.timing import open_session


def main() -> None:
    """Arguments: the model's file, an npz of its inputs, the setting. Imports are not timed."""
    import onnxruntime as ort

    path, feeds_file, setting = sys.argv[1:]
    with np.load(feeds_file, allow_pickle=False) as file:
        feeds = {name: file[name] for name in file.files}
    ort.set_default_logger_severity(3)
    marks = [time.perf_counter_ns()]
    session = open_session(Path(path), parse_setting(setting))
    marks.append(time.perf_counter_ns())
    for _ in range(2):
        session.run(None, feeds)
        marks.append(time.perf_counter_ns())
    load_ns, first_ns, second_ns = (b - a for a, b in pairwise(marks))
    status = Path("/proc/self/status").read_text(encoding="ascii")
    peak_bytes = int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024
    times = {"load_ns": load_ns, "first_run_ns": first_ns, "second_run_ns": second_ns}
    show(json.dumps({**times, "peak_bytes": peak_bytes}))
