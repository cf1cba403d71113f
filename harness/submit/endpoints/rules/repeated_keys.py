"""Finds keys that appear twice in a file. A person may read the first value, but programs use the last value."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from harness.submit.endpoints.rules.findings import Finding
from harness.submit.endpoints.rules.submission import ACCURACY, REQUIRED, Point


class _Twice(ValueError):
    """Raised when a key appears twice in a mapping; contains the key."""


def repeated_keys(point: Point) -> Iterator[Finding]:
    for name in (*REQUIRED, ACCURACY):
        text = point.tree.text(point.file(name))
        key = _in_yaml(text) if name.endswith(".yaml") else _in_json(text)
        if key:
            yield Finding("bad-file", point.file(name), f"the key {key} appears twice", "once")


def _in_json(text: str) -> str:
    """Returns the first repeated key; '' if every key is unique or the text is not JSON."""

    def single(pairs: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise _Twice(next(name for name in names if names.count(name) > 1))

    try:
        json.loads(text, object_pairs_hook=single)
    except _Twice as e:
        return str(e)
    except (ValueError, RecursionError):
        return ""
    return ""


def _in_yaml(text: str) -> str:
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return ""
    waiting = [root] if root is not None else []
    seen: set[int] = set()
    while waiting:
        node = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
            if len(set(names)) < len(names):
                return str(next(name for name in names if names.count(name) > 1))
            waiting += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            waiting += node.value
    return ""
