"""Results of the golden runs, each changed so that it leads to one particular conclusion."""

from copy import deepcopy
from typing import Any

from harness.core.files import read_json
from tests.golden.make_runs import FOLDERS

BUSY = {"code": "busy-machine", "text": "other processes used 86 % of the cores during the run"}
PADDED = {"code": "padded", "text": "the model file fixes the batch at 8"}
LATE = {"code": "slo-missed", "text": "p90 is above its bound"}


def golden(name: str, **changed: Any) -> dict[str, Any]:
    """Returns the result of a golden run on a quiet machine."""
    result = dict(read_json(FOLDERS / name / "result.json"))
    return deepcopy({**result, "doubts": [], **changed})


def reference(**changed: Any) -> dict[str, Any]:
    """Returns a Server run 1.05 times as slow as the reference dispatcher."""
    section = {"what": "p90", "unit": "ns", "reference": 100_000, "ours": 105_000, "ratio": 1.05}
    lost_ns = {"issue_delay": 4_000.0, "infer": 1_000.0}
    at_run_speed = {"reference": 100_000, "ratio": 1.05}
    return {**section, "lost_ns": lost_ns, "at_run_speed": at_run_speed, **changed}


def held_back(**changed: Any) -> dict[str, Any]:
    """Returns a run three times as slow as the reference; the run lost the time in `issue_delay`, not in the model."""
    slow = {"ratio": 3.0, "at_run_speed": {"reference": 100_000, "ratio": 2.9}}
    return reference(**{**slow, "lost_ns": {"issue_delay": 190_000.0, "infer": 5_000.0}, **changed})
