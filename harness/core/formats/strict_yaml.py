"""Reads small YAML files without code, aliases or repeated keys."""

from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from harness.errors import ConfigError


class _StrictLoader(yaml.SafeLoader):
    """Refuses aliases and repeated keys; YAML itself takes the last of these."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("aliases are not allowed here")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        mapping: Any = super().construct_mapping(node, deep)
        if len(mapping) < len(keys):
            twice = next(key for key, count in Counter(keys).items() if count > 1)
            raise yaml.YAMLError(f"the key {twice!r} comes twice{node.start_mark}")
        return mapping


def load_yaml(path: Path) -> object:
    """The content of the file; a ConfigError names the file and the line."""
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise ConfigError(f"{path} is larger than 1 MiB: not a configuration or manifest")
        return yaml.load(path.read_text(encoding="utf-8"), _StrictLoader)  # noqa: S506 - is safe
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except (yaml.YAMLError, ValueError, RecursionError) as e:  # ValueError: an impossible date
        reason = " ".join(str(e).split())
        raise ConfigError(f"{path} is not YAML: {reason}") from None


def load_mapping(path: Path) -> dict[Any, Any]:
    """The content of a configuration; a ConfigError where it is no mapping."""
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a configuration")
    return content


MAX_MANIFEST_BYTES = 1 << 20
"""YAML aliases can grow a small file a millionfold; they are refused, and so are large files."""
