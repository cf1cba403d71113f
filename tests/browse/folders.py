"""Folders with results for the tests of `browse`."""

import json
import shutil
from pathlib import Path
from typing import Any

from harness.browse.index import Entry
from harness.results.seal.digests import SEAL
from tests.builders.support import GOLDEN

RUNS = GOLDEN / "runs"
"""Five small finished runs: closed-loop, closed-loop-again, offline, server and single-stream."""

EVIL = "<script>alert(1)</script>&\"'"


def golden_results(folder: Path) -> Path:
    """Returns a copy of the golden runs, which a test may change, because they are not sealed."""
    shutil.copytree(RUNS, folder, ignore=shutil.ignore_patterns("expected.json", SEAL))
    return folder


def edit(run: Path, **changed: Any) -> None:
    """Changes keys in a run's result.json."""
    file = run / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))


def curve_point(rate: float, p99_ms: float) -> dict[str, object]:
    """Returns a point of a sweep under an SLO of 10 ms. rate: in queries/s."""
    return {
        **dict.fromkeys(("rate_per_s", "scheduled_per_s", "completed_per_s"), rate),
        "p50_ns": 2e6,
        "p90_ns": 3e6,
        "p99_ns": p99_ms * 1e6,
        "mean_ns": 2e6,
        "share": None,
        "mean_batch": 1.0,
        "busy_share": 0.5,
        "model_per_s": None,
        "verdict": "VALID" if p99_ms < 10 else "INVALID",
        "reasons": (),
        "doubts": (),
        "folder": "",
        "queries": 1,
        "late": 0,
    }


def curve(results: Path, *points: dict[str, object]) -> Entry:
    """Writes a sweep with these points."""
    content = {
        "config": {"scenario": "server", "backend": "ort"},
        "model": "digits",
        "slo": "p99=10ms",
        "peak": None,
        "peak_is_measured": False,
        "knee": None,
        "points": points,
        "highest_valid": None,
    }
    (results / "curve.partial").mkdir(exist_ok=True)
    (results / "curve.partial/sweep.json").write_text(json.dumps(content))
    return Entry("curve.partial", "", study="sweep")
