"""Files in a result folder as if somebody had edited them by hand."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml


def edit(path: Path, change: Callable[[Any], object]) -> None:
    """Changes the content of a JSON or YAML file, and writes the result as JSON."""
    load = yaml.safe_load if path.suffix == ".yaml" else json.loads
    content = load(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edited(source: Path, copy: Path, name: str, change: Callable[[Any], object]) -> Path:
    """Copies a folder and changes one file in the copy."""
    shutil.copytree(source, copy)
    edit(copy / name, change)
    return copy


def replace_text(path: Path, old: str, new: str) -> None:
    """Replaces `old`, which the file must contain, with `new`."""
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
