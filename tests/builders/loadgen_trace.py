"""Reads the schedule and latency of each query from LoadGen's trace of a real Server run."""

import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from harness.loadgen.logs import DETAIL, TRACE, DetailLog, read_detail
from harness.types import Array


@dataclass
class Traced:
    """scheduled_ns and latency_ns: arrays of shape (queries,), in LoadGen's query order."""

    scheduled_ns: Array
    latency_ns: Array
    log: DetailLog


def trace(out: Path, queries: int, *, late: int, qps: int) -> Traced:
    """Runs tests/builders/loadgen_run.py once, with `late` queries that exceed the bound."""
    script = str(Path(__file__).parent / "loadgen_run.py")
    command = [sys.executable, script, str(out), "Server", str(queries), str(late), str(qps)]
    subprocess.run(command, check=True)
    # The trace is not valid JSON if it contains LogDetail events, because the quotes in their arguments are doubled.
    samples = re.findall(
        r'"name":"Sample".*?"ph":"b".*?"ts":(\d+)\.(\d{3}),'
        r'"args":\{"sample_seq":(\d+),.*?"complete_ns":(\d+)\}',
        (out / TRACE).read_text(),
    )
    by_query = sorted((int(seq), int(us + ns), int(late)) for us, ns, seq, late in samples)
    assert [seq for seq, _, _ in by_query] == list(range(queries))
    _, scheduled_ns, latency_ns = np.array(by_query).T
    return Traced(scheduled_ns, latency_ns, read_detail(out / DETAIL))
