"""Renders progress as terminal rows with rich.progress. This module is imported only if stderr is a terminal."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

_BAR_COLUMNS = 20


class Bar:
    """Draws the rows without rich's live display, which leaves fragments behind when the terminal narrows, redraws from
    another thread and takes over stdout.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._rich = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(_BAR_COLUMNS),
            TextColumn("{task.fields[percent]}", markup=False),
            TextColumn("{task.fields[details]}", markup=False),
            console=console,
            auto_refresh=False,
        )
        self._task = self._rich.add_task("", percent="", details="")

    def rows(
        self, columns: int, name: str, share: float | None, details: Sequence[str]
    ) -> Sequence[str]:
        """Returns the bar and the texts beside it, cropped to `columns`. share: None for an indeterminate bar."""
        self._console.width = columns
        self._rich.update(
            self._task,
            description=name,
            total=None if share is None else 1.0,
            completed=share or 0.0,
            details="  ".join(details),
            percent="" if share is None else f"{share * 100:.0f} %",
        )
        with self._console.capture() as captured:
            table = self._rich.make_tasks_table(self._rich.tasks)
            self._console.print(table, no_wrap=True, overflow="ellipsis", crop=True)
        return captured.get().splitlines()
