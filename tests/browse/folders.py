"""Folders with results for the tests of `browse`."""

import json
import shutil
from pathlib import Path
from typing import Any

from tests.builders.support import GOLDEN

RUNS = GOLDEN / "runs"
"""Five small finished runs: closed-loop, closed-loop-again, offline, server and single-stream."""

EVIL = "<script>alert(1)</script>&\"'"


def golden_results(folder: Path) -> Path:
    """Returns a copy of the golden runs, which a test may change."""
    shutil.copytree(RUNS, folder, ignore=shutil.ignore_patterns("expected.json"))
    return folder


def edit(run: Path, **changed: Any) -> None:
    """Changes keys in a run's result.json."""
    file = run / "result.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
