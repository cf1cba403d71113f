"""Measures the independent parts of advice: weights, storage formats, operators, self-checks."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, one_line
from harness.explain.advise.checks import operators, self_checks, storage, weights
from harness.explain.advise.layers.settings import Setting
from harness.explain.advise.layers.timing import open_session
from harness.explain.advise.subject import Job
from harness.explain.kernels import ort
from harness.models.manifest.files import files_of
from harness.models.opened.ort_session import SessionSetup
from harness.types import Array

_BATCH = 8


def measure(job: Job, skipped: frozenset[str], parts: dict[str, Any]) -> None:
    """Fills in all PARTS except the skipped ones; a failed part gets its reason."""
    for name, part in PARTS.items():
        if name in skipped:
            parts[name] = {"failed": "skipped: --skip"}
            continue
        job.tell(name)
        try:
            with tempfile.TemporaryDirectory(prefix="harness-advise-", dir=job.folder) as folder:
                parts[name] = part(job, Path(folder))
        except HarnessError as e:
            parts[name] = {"failed": one_line(e)}
        except Exception as e:  # noqa: BLE001 - of frameworks; the rest is worth having
            parts[name] = {"failed": f"{type(e).__name__}: {one_line(e)}"}


def _weights(job: Job, _folder: Path) -> Any:
    return weights.patterns(job.graph, job.path)


def _storage(job: Job, folder: Path) -> Any:
    size = sum(path.stat().st_size for path in files_of(job.path).values())
    return storage.compare(job.path, job.feeds, job.request.now, folder, size)


def _operators(job: Job, folder: Path) -> Any:
    return operators.compare(job.graph, job.costs, folder)


def _self_checks(job: Job, _folder: Path) -> Any:
    now, name = job.request.now, job.subject.model.name
    session = open_session(job.path, now)
    checks = {
        "repeatability": self_checks.repeatability(session, job.feeds, job.graph.outputs),
        "overhead": self_checks.overhead(job.path, name, job.feeds, now),
    }
    del session
    feeds = {k: v[[i % len(v) for i in range(_BATCH)]] for k, v in job.feeds.items()}
    try:
        checks["micro_batches"] = self_checks.micro_batches(job.path, feeds, now, _peak_bytes)
    except Exception as e:  # noqa: BLE001 - a model of one fixed batch
        checks["micro_batches"] = {"failed": one_line(e) or type(e).__name__}
    return checks


def _peak_bytes(path: Path, feeds: Mapping[str, Array], setting: Setting) -> int | None:
    setup = SessionSetup(threads=setting.kernel.threads, graph=setting.graph)
    return ort.profile(path, feeds, runs=1, warm_up=1, setup=setup).peak_bytes


PARTS: Mapping[str, Callable[[Job, Path], Any]] = {
    "weights": _weights,
    "storage": _storage,
    "operators": _operators,
    "checks": _self_checks,
}
