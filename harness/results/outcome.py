"""Describes how a run ended by its exit status, folder and result.json."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.console import columns, show
from harness.results.numbers import numbers
from harness.results.pages import run_table


class Finished(NamedTuple):
    """A run that has ended, successfully or not."""

    status: int
    """The run's exit status."""
    folder: Path
    """The final folder, or the `.partial` folder of an incomplete run."""
    result: Mapping[str, Any]
    """The content of result.json (harness/results/schema/result.py)."""

    def in_short(self, *names: str) -> str:
        """Returns the verdict with the codes of its reasons, and the requested numbers that the run measured."""
        words = [
            " ".join([self.result["verdict"], *(one["code"] for one in self.result["reasons"])])
        ]
        known = numbers(self.result)
        for name in filter(known.__contains__, names):
            label = f"{name} " if known[name].unit == "ns" else ""
            words.append(f"{label}{run_table.show_quantity(known[name]._asdict())}")
        return ", ".join(words)

    def show(self, *, as_json: bool, details: bool = False) -> None:
        """Prints the result. details: prints every number instead of only the answer."""
        if as_json:
            show(json.dumps(self.result, indent=2, default=str))
        else:
            show_screen(self.result, self.folder, details=details)


def show_screen(result: Mapping[str, Any], folder: Path, *, details: bool) -> None:
    """Prints the screen shown at the end of a run, in colour if the output is a terminal."""
    lines = run_table.lines(result, folder, details=details, columns=columns())
    show("\n".join(lines), run_table.paint)


Measure = Callable[..., Finished]
"""Type of harness.run.supervisor.job.measure. Jobs that make several runs receive this function as an argument."""
