"""Declares the options that the verbs of this package share: numbers, paths, a model's data, results."""

from pathlib import Path
from typing import Any

from harness.core.config.options import option
from harness.core.config.parse import parse_path, positive

MOST_THREADS = 1024


def number(help_text: str, group: str, default: int | None = None, most: int = 1_000_000) -> Any:
    """Declares a whole number from 1 to `most`. The help names the default if one exists."""
    shown = help_text if default is None else f"{help_text} (default {default})"
    return option(shown, parse=positive(most), default=default, metavar="N", group=group)


def path(
    help_text: str, metavar: str, group: str, *, name: str = "", default: Path | None = None
) -> Any:
    return option(
        help_text, name=name, parse=parse_path, default=default, metavar=metavar, group=group
    )


def dataset(group: str) -> Any:
    return option(
        "a dataset from `list` (default: the manifest's, else synthetic)",
        metavar="NAME",
        group=group,
    )


def data_dir(group: str) -> Any:
    return option("file or folder of the dataset", metavar="PATH", group=group)


def input_shape(group: str) -> Any:
    return option(
        "shape of an input with symbolic dimensions, e.g. ids=1x128 (repeatable)",
        metavar="NAME=1xDIM",
        many=True,
        group=group,
    )


def input_range(group: str) -> Any:
    return option(
        "synthetic data: range of an input's values, as for a run (repeatable)",
        metavar="NAME=LOW:HIGH",
        many=True,
        group=group,
    )


def skip(parts: tuple[str, ...], group: str) -> Any:
    return option(
        f"part to skip: {', '.join(parts)} (repeatable)",
        choices=parts,
        metavar="PART",
        many=True,
        group=group,
    )


def out(named: str, group: str) -> Any:
    """Declares the option for the result folder. named: the part of the default folder's name that follows the time."""
    return path(
        f"result folder, which must not exist yet (default results/TIME-{named})", "DIR", group
    )


def source(group: str) -> Any:
    text = "measure nothing; print the tables and draw the page of this folder again"
    return path(text, "DIR", group, name="from")


def as_json(group: str, text: str = "print the numbers of the tables as JSON") -> Any:
    return option(text, flag=True, default=False, group=group)


def quiet(group: str) -> Any:
    return option("print no progress", flag=True, default=False, group=group)
