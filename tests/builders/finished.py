"""Folders of finished runs: the golden runs, and copies marked INVALID."""

import json
import shutil
from pathlib import Path

import numpy as np

RUNS = Path(__file__).parents[1] / "golden/runs"
REASON = {"code": "loadgen-invalid", "text": "<LoadGen> says \x1b[31mINVALID & =1+1"}
"""This text must be escaped in HTML, XML, terminals and spreadsheets."""


def invalid(name: str, folder: Path) -> Path:
    """Copies a golden run and marks it INVALID in result.json, for readers that do not check the seal."""
    copy = shutil.copytree(RUNS / name, folder / name)
    path = copy / "result.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content |= {"verdict": "INVALID", "reasons": [REASON]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return copy


def answered_later(folder: Path, by_ns: int) -> None:
    """Changes a copy so that it counts as a different run, because its last answer comes later."""
    path = folder / "performance/run_1/completions.npz"
    with np.load(path) as file:
        columns = dict(file)
    columns["completed_ns"][-1] += by_ns
    np.savez(path, **columns)
