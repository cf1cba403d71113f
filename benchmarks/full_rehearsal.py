"""Makes a closed resnet rehearsal at full length, 600 s per run, with a model that sleeps and so keeps no core busy.

    python benchmarks/full_rehearsal.py WORK [--official CHECKOUT] [--side-by-side | --network]

The script makes sixteen runs under the official rules on 50,000 synthetic samples, then calls `pack` and `check`. The
runs take 2 h 25 min one after another. With --side-by-side, all scenarios run at the same time and take 50 min, which
is valid only because the model sleeps. With --network, the script rehearses the Network division in 25 min: Offline of
3d-unet-99 on 43 samples, with `serve` on this machine. After an interruption, the same command continues. The script
returns the exit status of `check`.

The numbers do not describe any model: the script tests the steps from runs to a submission.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks.rehearsal import pack_and_check, run_lots, submit  # noqa: E402
from benchmarks.sleeper import Sleeper  # noqa: E402
from harness.datasets.parts.rows import LoadedRows  # noqa: E402
from harness.types import Answer, Array, Batch, DatasetSetup, Score  # noqa: E402

_HERE = Path(__file__).resolve()
_TRUST = [f"--trust={_HERE}:{name}" for name in ("Reader", "Labelled", "Volumes", "Share")]
"""Options that let a stored request run the classes in this file."""

SCENARIOS = ("SingleStream", "MultiStream", "Server", "Offline")
SAMPLES = 50_000
SERVICE_MS = 0.9
USER_CONF = """\
*.SingleStream.target_latency = 1
*.MultiStream.target_latency = 8
*.Server.target_qps = 200
*.Offline.target_qps = 1100
"""
"""Settings that hold even on a slow machine, because the model sleeps for a fixed time."""

VOLUMES = 43
NETWORK_SERVICE_MS = 40
NETWORK_PORT = 18917
NETWORK_CONF = "*.Offline.target_qps = 25\n"


class Labelled:
    """Random images. The label is the position of the largest of the first ten pixels."""

    _count = SAMPLES

    def __init__(self, setup: DatasetSetup) -> None:
        random = np.random.default_rng(setup.seed)
        self._images = random.random((self._count, 1, 8, 8), np.float32)
        self._labels = self._images.reshape(self._count, -1)[:, :10].argmax(axis=1)
        self._rows = LoadedRows(self._count)

    def __len__(self) -> int:
        return self._count

    def load(self, indices: Sequence[int]) -> None:
        self._rows.hold(indices, {"image": self._images[np.asarray(indices)]})

    def unload(self, indices: Sequence[int]) -> None:
        self._rows.unload(indices)

    def batch(self, indices: Sequence[int]) -> Batch:
        return self._rows.batch(indices)

    def label(self, index: int) -> int:
        return int(self._labels[index])

    def describe(self) -> Mapping[str, object]:
        return {
            "name": "labelled",
            "count": self._count,
            "source": "seeded noise",
            "digest": "seeded",
        }


class Volumes(Labelled):
    """Images as in `Labelled`, but with as many samples as 3d-unet-99 has volumes."""

    _count = VOLUMES


class Share:
    """The share of correct labels, in the format of 3D U-Net's accuracy script."""

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)

    def score(self, answers: Iterable[Answer], labels: Mapping[int, object]) -> Score:
        right = [labels[i] == np.frombuffer(payload, self._dtype)[0] for i, payload in answers]
        share = sum(right) / len(right)
        line = f"Accuracy: mean = {share:.5f}, kidney = {share:.4f}, tumor = {share:.4f}"
        return Score(metric="share", value=share, unit="", samples=len(right), line=line)


class Reader(Sleeper):
    """Sleeps, then answers with the first ten pixels."""

    def infer(self, batch: Batch) -> Array:
        time.sleep(self._service_s)
        return batch.inputs["image"].reshape(batch.size, -1)[:, :10]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("work", type=Path)
    parser.add_argument("--official", type=Path)
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--side-by-side", action="store_true")
    kind.add_argument("--network", action="store_true")
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    with _serving() if options.network else nullcontext("") as url:
        (work / "user.conf").write_text(NETWORK_CONF if url else USER_CONF)
        request = _network_request(work, url) if url else _request(work)
        submit("plan", f"--work={work}", *request)
        status = run_lots(work, SCENARIOS if options.side_by_side else (), *_TRUST)
    return status or pack_and_check(work, options.official, *_TRUST)


@contextmanager
def _serving() -> Iterator[str]:
    """Serves the sleeping model with `serve`, and yields its URL."""
    command = [
        *(sys.executable, "-m", "harness", "serve", "digits", "--backend", f"{_HERE}:Reader"),
        *(f"--backend-option=service_ms={NETWORK_SERVICE_MS}", "--threads=1", "--max-batch=1"),
        *("--postprocess", "--name=node-1", f"--listen=127.0.0.1:{NETWORK_PORT}"),
    ]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        try:
            yield line.split()[-1]
        finally:
            process.terminate()


def _network_request(work: Path, url: str) -> list[str]:
    return [
        "--rehearsal", "--division=network", "--submitter=LabOrg", "--system=asleep",
        "--category=datacenter", "--benchmark=3d-unet-99", f"--user-conf={work / 'user.conf'}",
        "--model=digits", "--backend=kserve", f"--url={url}", f"--dataset={_HERE}:Volumes",
        f"--metric={_HERE}:Share", "--hang-timeout=30min",
    ]  # fmt: skip


def _request(work: Path) -> list[str]:
    return [
        "--rehearsal", "--division=closed", "--submitter=LabOrg", "--system=asleep",
        "--category=datacenter,edge", "--benchmark=resnet", f"--user-conf={work / 'user.conf'}",
        "--model=digits", f"--backend={_HERE}:Reader", f"--dataset={_HERE}:Labelled",
        f"--backend-option=service_ms={SERVICE_MS}", "--instances=1", "--threads=1",
        "--max-batch=1", "--hang-timeout=30min",
    ]  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
