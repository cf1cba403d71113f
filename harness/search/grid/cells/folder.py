"""Names the files in a grid's folder, and finds the run of a cell."""

from pathlib import Path

from harness.results import run_folder
from harness.search.grid.cells.cells import Cell

GRID = "grid.json"
"""The file with the options, the precisions made and the absent cells of a grid."""

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
