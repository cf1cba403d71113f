"""Files of a result folder as somebody might have edited them by hand."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Changes the content of a JSON or YAML file, and writes it as JSON."""
    load = yaml.safe_load if path.suffix == ".yaml" else json.loads
    content = load(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edited(source: Path, copy: Path, name: str, change: Callable[[Any], object]) -> Path:
    """A copy of a folder in which one file is changed."""
    shutil.copytree(source, copy)
    edit(copy / name, change)
    return copy


def replace_text(path: Path, old: str, new: str) -> None:
    """Replaces `old`, which the file must contain, by `new`."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
