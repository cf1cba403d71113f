"""A closed resnet rehearsal at full length, 600 s a run, on a model that sleeps: no core is kept busy.

    python benchmarks/full_rehearsal.py WORK [--official CHECKOUT] [--side-by-side]

Sixteen runs under the official rules on 50,000 synthetic samples, then `pack` and `check`. One after
another they take 2 h 25 min; with --side-by-side all scenarios run at once, in 50 min, which is valid
only because the model sleeps. After an interruption the same command continues. The exit status is that
of `check`.

The numbers mean nothing for any model: the script tests the path from runs to a submission.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.sleeper import Sleeper  # noqa: E402
from harness.datasets.parts.rows import LoadedRows  # noqa: E402
from harness.types import Array, Batch, DatasetSetup  # noqa: E402

SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")
SAMPLES = 50_000
SERVICE_MS = 0.9
USER_CONF = """\
*.SingleStream.target_latency = 1
*.MultiStream.target_latency = 8
*.Server.target_qps = 200
*.Offline.target_qps = 1100
"""
"""Sizes that hold on a slow machine too: the model cannot be faster."""


class Labelled:
    """Images whose label is the position of the largest of the first ten pixels."""

    def __init__(self, setup: DatasetSetup) -> None:
        random = np.random.default_rng(setup.seed)
        self._images = random.random((SAMPLES, 1, 8, 8), np.float32)
        self._labels = self._images.reshape(SAMPLES, -1)[:, :10].argmax(axis=1)
        self._rows = LoadedRows(SAMPLES)

    def __len__(self) -> int:
        return SAMPLES

    def load(self, indices: Sequence[int]) -> None:
        self._rows.hold(indices, {"image": self._images[np.asarray(indices)]})

    def unload(self, indices: Sequence[int]) -> None:
        self._rows.unload(indices)

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._rows.batch(indices)

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def describe(self) -> Mapping[str, object]:
        return {"name": "labelled", "count": SAMPLES, "source": "seeded noise", "digest": "seeded"}


class Reader(Sleeper):
    """Answers with the first ten pixels, after its sleep."""

    def infer(self, batch: Batch) -> Array:
        time.sleep(self._service_s)
        return batch.inputs["image"].reshape(batch.size, -1)[:, :10]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--official", type=Path)
    parser.add_argument("--side-by-side", action="store_true")
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    (work / "user.conf").write_text(USER_CONF)
    _submit("plan", work, *_request(work))
    lots = [[f"--only={name}"] for name in SCENARIOS] if options.side_by_side else [[]]
    statuses = _all_of([_command("run", work, *lot) for lot in lots])
    if any(statuses):
        return max(statuses)
    more = ["--official", str(options.official)] if options.official else []
    _submit("pack", work, *more)
    return _submit("check", None, str(work / "tree"), "--rehearsal", *more)


def _request(work: Path) -> list[str]:
    here = Path(__file__).resolve()
    return [
        "--rehearsal", "--division=closed", "--submitter=LabOrg", "--system=asleep",
        "--category=datacenter,edge", "--benchmark=resnet", f"--user-conf={work / 'user.conf'}",
        "--model=digits", f"--backend={here}:Reader", f"--dataset={here}:Labelled",
        f"--backend-option=service_ms={SERVICE_MS}", "--instances=1", "--threads=1",
        "--max-batch=1", "--hang-timeout=30min",
    ]  # fmt: skip


def _command(verb: str, work: Path | None, *words: str) -> list[str]:
    place = ["--work", str(work)] if work else []
    return [sys.executable, "-m", "harness", "submit", verb, *place, *words]


def _submit(verb: str, work: Path | None, *words: str) -> int:
    return subprocess.run(_command(verb, work, *words), cwd=ROOT, check=False).returncode


def _all_of(commands: list[list[str]]) -> list[int]:
    """Runs the commands at once and returns their exit statuses. SIGTERM and Ctrl-C reach every command, which
    then saves its measurements.
    """
    processes = [subprocess.Popen(command, cwd=ROOT) for command in commands]

    def stop(number: int, _frame: FrameType | None) -> None:
        for process in processes:
            process.send_signal(number)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, lambda *_: None)  # the terminal signals all of them
    return [process.wait() for process in processes]


if __name__ == "__main__":
    sys.exit(main())
