"""Declares the kinds of options that `advise` and `bricks` share: whole numbers and paths."""

from pathlib import Path
from typing import Any

from harness.core.config.options import option
from harness.core.config.parse import parse_path, positive

MOST_THREADS = 1024


def number(help_text: str, group: str, default: int | None = None, most: int = 1_000_000) -> Any:
    """A whole number from 1 to `most`; the help names the default where there is one."""
    shown = help_text if default is None else f"{help_text} (default {default})"
    return option(shown, parse=positive(most), default=default, metavar="N", group=group)


def path(
    help_text: str, metavar: str, group: str, *, name: str = "", default: Path | None = None
) -> Any:
    return option(
        help_text, name=name, parse=parse_path, default=default, metavar=metavar, group=group
    )
