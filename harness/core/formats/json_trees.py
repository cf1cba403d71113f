"""Reads option values in JSON or YAML. The option contains either the value itself or the name of a file that contains
it.
"""

import json
from pathlib import Path

from harness.core.files import parse_json
from harness.core.formats.strict_yaml import MAX_MANIFEST_BYTES, parse_yaml
from harness.errors import one_line


def parse_tree(text: str) -> object:
    """Returns the content of a JSON or YAML text. Raises a ValueError with a one-line message if the text is invalid."""
    try:
        return parse_json(text)
    except (ValueError, RecursionError) as e:
        if isinstance(e, json.JSONDecodeError):
            return parse_yaml(text)
        raise ValueError(f"is not valid JSON: {one_line(e)}") from None


def compact(tree: object) -> str:
    """Returns JSON on one line, without spaces between tokens."""
    return json.dumps(tree, separators=(",", ":"), ensure_ascii=False)


def compact_file(path: Path) -> str:
    """Returns the content of a JSON or YAML file as JSON on one line. Raises a ValueError with a one-line message if
    the content is invalid.
    """
    try:
        with path.open("rb") as file:
            # The read is bounded, because a device file has no size and may never end.
            content = file.read(MAX_MANIFEST_BYTES + 1)
    except OSError as e:
        raise ValueError(f"{path} cannot be read: {e.strerror}") from None
    if len(content) > MAX_MANIFEST_BYTES:
        raise ValueError(f"{path} is larger than 1 MiB: pass the path of a JSON or YAML file")
    try:
        return compact(parse_tree(content.decode()))
    except UnicodeDecodeError as e:
        raise ValueError(f"{path} is not UTF-8, at byte {e.start + 1}") from None
    except (ValueError, RecursionError, TypeError) as e:
        raise ValueError(f"{path} {one_line(e)}") from None
