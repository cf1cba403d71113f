"""Describes how a run ended: exit status, folder and content of result.json."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.console import show
from harness.results.pages import run_table


class Finished(NamedTuple):
    """A run that has ended, whether or not it succeeded."""

    status: int
    """Exit status."""
    folder: Path
    """The final folder, or the `.partial` one."""
    result: Mapping[str, Any]
    """The content of result.json (harness/results/schema/result.py)."""

    def show(self, *, as_json: bool) -> None:
        text = json.dumps(self.result, indent=2, default=str) if as_json else None
        show(text or "\n".join(run_table.lines(self.result, self.folder)))


Measure = Callable[..., Finished]
"""harness.run.supervisor.job.measure, handed to the jobs that make several runs."""
