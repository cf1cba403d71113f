"""Runs the command as a user types it, in a separate process, and reads its result."""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil

from harness.types import Array

ROOT = Path(__file__).parent.parent
HERE = Path(__file__).parent
DIGITS = ROOT / "harness/models/shipped/digits.onnx"
_QUIET_SHARE = 0.06
_TRIES = 3
_SETTLE_S = 15.0
_POLL_S = 0.05

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Run:
    """A finished run. result: result.json. columns: completions.npz, one entry per sample. Times are on the wall clock,
    in ns.

    ended_ns: end of the command, accurate to 50 ms. supervisor_peak_bytes: peak of the supervisor's resident memory,
    last read before the supervisor ended.
    """

    result: dict[str, Any]
    columns: Mapping[str, Array]
    spawned_ns: int
    first_entry_ns: int
    last_completed_ns: int
    ended_ns: int
    supervisor_peak_bytes: int


class Noise:
    """Repeats measurements that other processes disturbed. The CPU time of other processes decides whether to repeat,
    never the result.
    """

    def __init__(self, tries: int = _TRIES) -> None:
        self._tries = tries
        self.repeated = 0
        self.shares: list[float] = []

    def quiet(self, measure: Callable[[], T]) -> T:
        """Returns the first run during which other processes used at most 6 % of the machine, or the last of
        `tries` runs.
        """
        tries = 1
        while True:
            _settle()
            before = _cpu_s()
            found = measure()
            busy, own, total = (now - then for then, now in zip(before, _cpu_s(), strict=True))
            share = max(0.0, busy - own) / max(total, 1e-9)
            if share <= _QUIET_SHARE or tries >= self._tries:
                self.shares.append(round(share, 4))
                return found
            tries += 1
            self.repeated += 1

    def text(self) -> str:
        most = max(self.shares, default=0.0)
        return f"others' CPU ≤ {most:.0%}, {self.repeated} runs repeated"


def _settle() -> None:
    """Waits up to 15 s until the machine is idle."""
    deadline = time.monotonic() + _SETTLE_S
    while psutil.cpu_percent(interval=0.5) > 100 * _QUIET_SHARE and time.monotonic() < deadline:
        pass


def _cpu_s() -> tuple[float, float, float]:
    """Returns three CPU times in seconds: the machine's busy time (with steal), this process's with its children, and
    the machine's total including idle time.
    """
    times = psutil.cpu_times()
    busy = times.user + times.nice + times.system + getattr(times, "steal", 0.0)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy, sum(u.ru_utime + u.ru_stime for u in used), busy + times.idle


def harness(
    *arguments: str, prefix: Sequence[str] = ("-m", "harness"), checkout: Path = ROOT
) -> Run:
    """Makes one run in a temporary folder. An INVALID run is also a result."""
    with tempfile.TemporaryDirectory() as parent:
        folder = Path(parent) / "run"
        command = [sys.executable, *prefix, *arguments, "--quiet", "--out", str(folder)]
        spawned_ns = time.time_ns()
        with subprocess.Popen(
            command,
            cwd=checkout,
            env=environment(checkout),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as process:
            peak = _peak_bytes(process)
            assert process.stderr is not None
            ended_ns = time.time_ns()
            errors = process.stderr.read().decode()
        if process.returncode not in (0, 4):
            raise RuntimeError(f"{' '.join(arguments)}: status {process.returncode}: {errors}")
        text = (folder / "result.json").read_text(encoding="utf-8")
        with np.load(folder / "performance/run_1/completions.npz") as done:
            columns = {name: done[name] for name in done.files}
        return Run(
            json.loads(text),
            columns,
            spawned_ns,
            int(columns["entry_ns"].min()),
            int(columns["completed_ns"].max()),
            ended_ns,
            peak,
        )


def script(name: str, *arguments: str) -> Any:
    """Returns the JSON that another script in this folder prints.

    -P prevents Python from importing triton.py in this folder instead of the package that torch imports.
    """
    command = [sys.executable, "-P", str(HERE / name), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment())
    return json.loads(done.stdout.splitlines()[-1])


def wall_s(*arguments: str) -> float:
    """Returns how many seconds a Python process with these arguments takes."""
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return time.perf_counter() - start


def environment(checkout: Path = ROOT) -> dict[str, str]:
    """Returns an environment in which scripts import the checkout's harness, not an installed one.

    Python stores compiled modules, as it does for a user; otherwise, every start would compile all modules.
    """
    kept = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "PYTHONPATH": str(checkout)}


def _peak_bytes(process: "subprocess.Popen[bytes]") -> int:
    """Waits until the process ends and returns its peak memory. The kernel keeps the maximum, so polling misses little."""
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8")
        except OSError:
            break
        for line in status.splitlines():
            if line.startswith("VmHWM:"):
                peak = int(line.split()[1]) * 1024
        time.sleep(_POLL_S)
    process.wait()
    return peak
