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


def drop_all(texts: dict[str, Any], problems: list[str]) -> None:
    """Removes `all` from a list with other backends and adds a problem. Otherwise, `all` would be reported as an unknown
    backend.
    """
    words = [word.strip() for word in texts.get("backend", "").split(",")]
    others = [word for word in words if word != ALL]
    if others and len(others) < len(words):
        problems.append(f"--backend {ALL} already stands for every backend: drop the other names")
        texts["backend"] = ",".join(others)


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
