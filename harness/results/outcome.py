"""The outcome of a measured run: exit status, folder, content of result.json."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.console import show
from harness.results.pages import run_table


class Finished(NamedTuple):
    """A run that has ended, however it did. status: the exit status. folder: its name by now.
    result: the content of result.json.
    """

    status: int
    folder: Path
    result: Mapping[str, Any]

    def show(self, *, as_json: bool) -> None:
        """On stdout: the table, or result.json."""
        text = json.dumps(self.result, indent=2, default=str) if as_json else None
        show(text or "\n".join(run_table.lines(self.result, self.folder)))


Measure = Callable[..., Finished]
"""harness.run.supervisor.job.measure, for what makes runs and must not know the composition."""
