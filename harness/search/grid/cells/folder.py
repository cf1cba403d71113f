"""The folder of a grid: what its files are called, and where a cell's run lies."""

from pathlib import Path

from harness.results import run_folder
from harness.search.grid.cells.cells import Cell

GRID = "grid.json"
"""What was asked for, what was made, and what could not be run: all that no cell's folder says."""

CELLS = "cells"
PROBES = "probes"


def folder_of(grid: Path, cell: Cell) -> Path | None:
    """The cell's finished run: its folder, or a numbered one beside one that did not finish."""
    for folder in sorted((grid / CELLS).glob(f"{cell.key}*")):
        number = folder.name.removeprefix(cell.key)
        own = number == "" or (number.startswith("-") and number[1:].isdecimal())
        if own and (folder / run_folder.RESULT).is_file():
            return folder
    return None
