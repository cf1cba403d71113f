"""Measures the independent parts of advice: weights, storage formats, operators, self-checks."""

import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.errors import HarnessError, one_line
from harness.explain.advise.checks import operators, self_checks, storage, weights
from harness.explain.advise.subject import Job

PARTS: Mapping[str, Callable[[Job, Path], Any]] = {
    "weights": weights.check,
    "storage": storage.check,
    "operators": operators.check,
    "checks": self_checks.check,
}
"""Each takes a folder for temporary files."""


def measure(job: Job, parts: dict[str, Any]) -> None:
    """Fills in all PARTS except the skipped ones; a failed part gets its reason."""
    for name, part in PARTS.items():
        if name in job.options.skip:
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
