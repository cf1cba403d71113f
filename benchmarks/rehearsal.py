"""Calls the verbs of `submit` for the scripts that rehearse MLPerf's benchmarks."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).parent.parent


def submit(verb: str, *words: str) -> int:
    """Runs one verb of `submit` and returns its exit status."""
    return subprocess.run(_command(verb, *words), cwd=ROOT, check=False).returncode


def run_lots(work: Path, lots: Sequence[str], *words: str) -> int:
    """Runs the scenarios at the same time, or all in one call if `lots` is empty. Returns the highest exit status.

    SIGTERM and Ctrl-C reach every call, which then saves its measurements.
    """
    calls = [[f"--only={name}"] for name in lots] or [[]]
    processes = [
        subprocess.Popen(_command("run", f"--work={work}", *words, *call), cwd=ROOT)
        for call in calls
    ]

    def stop(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    # The terminal sends SIGINT to all calls, so this process waits for them.
    signal.signal(signal.SIGINT, lambda *_: None)
    return max(abs(process.wait()) for process in processes)


def pack_and_check(work: Path, official: Path | None, *words: str) -> int:
    """Packs into a new tree and returns the exit status of `pack` or `check`. words: additional arguments for `pack`."""
    more = [f"--official={official.absolute()}"] if official else []
    # The loop removes the trees of an earlier call.
    for name in ("tree", "tree-raw", "tree.partial"):
        shutil.rmtree(work / name, ignore_errors=True)
    packed = submit("pack", f"--work={work}", *words, *more)
    return packed or submit("check", str(work / "tree"), "--rehearsal", *more)


def _command(verb: str, *words: str) -> list[str]:
    return [sys.executable, "-P", "-m", "harness", "submit", verb, *words]
