"""Folders of finished runs: the golden ones, and copies of them that are INVALID."""

import json
import shutil
from pathlib import Path

RUNS = Path(__file__).parents[1] / "golden/runs"
REASON = {"code": "loadgen-invalid", "text": "<LoadGen> says \x1b[31mINVALID & =1+1"}
"""A text that HTML, XML, terminals and spreadsheets have to escape."""


def invalid(name: str, folder: Path) -> Path:
    """A copy of a golden run whose result.json says INVALID, for readers that do not check the seal."""
    copy = shutil.copytree(RUNS / name, folder / name)
    path = copy / "result.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    content |= {"verdict": "INVALID", "reasons": [REASON]}
    path.write_text(json.dumps(content), encoding="utf-8")
    return copy
