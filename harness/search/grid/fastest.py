"""Writes the options with which other verbs use the system of the fastest cell: its backend, model and data."""

from pathlib import Path

from harness.core.formats.strict_yaml import load_mapping, write_yaml
from harness.results import run_folder
from harness.search.grid.view.report import FASTEST, fastest_row
from harness.search.grid.view.view import View

_KEPT = (
    "backend",
    "backend_option",
    "provider",
    "provider_option",
    "device",
    "model",
    "model_file",
    "model_sha256",
    "input_shape",
    "input_range",
    "lengths",
    "dataset",
    "dataset_option",
    "data_dir",
)
"""Options of the cell that hold under any load, unlike its threads and its batch."""


def write(view: View, folder: Path) -> None:
    """Writes FASTEST, or deletes it if no cell is ranked or the grid has several models, whose rates are not compared."""
    row = fastest_row(view)
    if row is None:
        (folder / FASTEST).unlink(missing_ok=True)
        return
    config = load_mapping(folder / row.folder / run_folder.CONFIG)
    write_yaml(folder / FASTEST, {name: config[name] for name in _KEPT if name in config})
