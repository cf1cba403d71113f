"""Recognises a command line that compares several backends in alternating runs."""

from collections.abc import Mapping
from typing import Any

from harness.core.config.options import option_key, visible_fields
from harness.search.grid.cells.options import GridOptions
from harness.search.options import RuntimesOptions

ALL = "all"
"""Value of --backend that selects every backend that computes on this machine."""

OF_BOTH = ("precision", "calibration_dir")
"""Grid options that a comparison of backends also accepts."""


def names_all(texts: Mapping[str, Any]) -> bool:
    return bool(texts.get("backend", "").strip() == ALL)


def names_runtimes(texts: Mapping[str, Any]) -> bool:
    """Returns whether the command line describes alternating runs, that is, several backends and no option that only a
    grid accepts.

    texts: texts by option key.
    """
    only_grid = {option_key(field) for field in visible_fields(GridOptions)} - {*OF_BOTH}
    shapes = any("/" in shape for shape in texts.get("input_shape", ()))
    if shapes or not texts.keys().isdisjoint(only_grid):
        return False
    own = map(option_key, visible_fields(RuntimesOptions))
    several = names_all(texts) or "," in texts.get("backend", "")
    return several or not texts.keys().isdisjoint(own)
