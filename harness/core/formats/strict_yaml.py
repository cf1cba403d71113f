"""Reads and writes small YAML files, and refuses code, aliases, tags, repeated keys and ambiguous values."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.core.files import write_text
from harness.errors import ConfigError

_PREFIX = "tag:yaml.org,2002:"
_ONE_READING = {
    "bool": re.compile(r"true|True|TRUE|false|False|FALSE"),
    "int": re.compile(r"[-+]?(0|[1-9][0-9]*)"),
    "float": re.compile(r"([-+]?[0-9]+\.[0-9]*|\.[0-9]+)([eE][-+][0-9]+)?"),
    "null": re.compile(r"null|Null|NULL"),
}
"""Patterns, by type, for unquoted words that YAML 1.1 and 1.2 interpret in the same way. All other unquoted words of
that type are refused.
"""

_NUMBERS_OF_1_2 = {
    "int": re.compile(r"0o[0-7]+\Z"),
    "float": re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z"),
}
"""Patterns for plain words that YAML 1.2 reads as numbers. If YAML 1.1 (and therefore PyYAML) reads such a word as a
string, the word is refused.
"""

_EXACT = 1 << 53
"""Whole numbers below this value are written without a decimal point, because a 64-bit float represents them exactly.
"""


class _Unclear(ValueError):
    """Raised for a part of the file that is refused. The message has the form `line 3: the fault, and what to write
    instead`.
    """

    def __init__(self, mark: Any, problem: str) -> None:
        super().__init__(f"line {mark.line + 1}: {problem}")


class _StrictLoader(yaml.SafeLoader):
    """Refuses aliases, tags, repeated keys (PyYAML would use the last one), and plain words that YAML versions
    interpret differently.

    Reads dates, `<<` and `=` as strings.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own attribute
        first: [
            (tag, pattern)
            for tag, pattern in resolvers
            if tag.removeprefix(_PREFIX) in _ONE_READING
        ]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_node(self, parent: Any, index: Any) -> Any:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise _Unclear(event.start_mark, "aliases are not allowed here")
        if event.tag:
            shown = event.tag.replace(_PREFIX, "!!")[:40]
            problem = f"tags such as {shown!r} are not allowed here: write the value alone"
            raise _Unclear(event.start_mark, problem)
        node: Any = super().compose_node(parent, index)
        if problem := self._problem(node):
            raise _Unclear(node.start_mark, problem)
        return node

    def _problem(self, node: Any) -> str:
        """Returns the fault of a plain word that YAML versions interpret differently; '' for other nodes."""
        kind = node.tag.removeprefix(_PREFIX)
        if kind not in _ONE_READING:
            return ""
        text = node.value[:40]
        if not text:
            return "the value is missing: write one, or remove the line"
        value: Any = self.construct_object(node)
        if kind == "float" and not math.isfinite(value):
            return f"{text} is not a finite number: write one, or quote the text"
        if _ONE_READING[kind].fullmatch(node.value):
            return ""
        first = _written(value) if kind == "float" else json.dumps(value)
        decimal = kind == "int" and text.lstrip("+-").isdigit()
        other = str(int(text)) if decimal else repr(text)
        second = other if decimal else f"the string {other}"
        return f"{text} can mean {first} or {second}: write {first} or {other}"

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        mapping: Any = super().construct_mapping(node, deep)
        if len(mapping) < len(keys):
            twice = next(key for key, count in Counter(keys).items() if count > 1)
            raise _Unclear(node.start_mark, f"the key {twice!r} appears twice")
        return mapping


class _StrictDumper(yaml.SafeDumper):
    """Quotes the strings that `_StrictLoader` would refuse as plain words."""


for _kind, _pattern in _NUMBERS_OF_1_2.items():
    for _class in (_StrictLoader, _StrictDumper):
        _class.add_implicit_resolver(_PREFIX + _kind, _pattern, "-+.0123456789")


def _written(number: float) -> str:
    """Returns the number in a form that both YAML versions read, with a decimal point before any exponent."""
    if number.is_integer() and abs(number) < _EXACT:
        return str(int(number))
    text = repr(number)
    return text if "." in text else text.replace("e", ".0e")


def yaml_of(content: object, **options: Any) -> str:
    """Returns the content as YAML that `parse_yaml` can read. options: passed to PyYAML."""
    text: str = yaml.dump(content, Dumper=_StrictDumper, sort_keys=False, **options)
    return text


def write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, yaml_of(dict(content), allow_unicode=True))


def parse_yaml(text: str) -> object:
    """Returns the content of a YAML text. Raises a ValueError with a one-line message, such as `line 3: the key 'a'
    appears twice`.
    """
    try:
        return yaml.load(text, _StrictLoader)  # noqa: S506 - is safe
    except _Unclear:
        raise
    except (yaml.YAMLError, ValueError, RecursionError) as e:
        if "int_max_str_digits" in str(e):
            raise ValueError("contains a number of more than 4,300 digits") from None
        raise ValueError(f"is not valid YAML: {' '.join(str(e).split())}") from None


def load_yaml(path: Path) -> object:
    """Returns the content of a YAML file. Raises a ConfigError that names the file and the faulty line."""
    try:
        with path.open("rb") as file:
            # The read is bounded, because a device file has no size and may never end.
            content = file.read(MAX_MANIFEST_BYTES + 1)
        if len(content) > MAX_MANIFEST_BYTES:
            raise ConfigError(
                f"{path} is larger than 1 MiB: pass the path of a configuration or a manifest"
            )
        text = content.decode("utf-8")
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    except UnicodeError as e:
        raise ConfigError(f"{path} is not valid YAML: {e}") from None
    try:
        return parse_yaml(text)
    except ValueError as e:
        raise ConfigError(f"{path} {e}") from None


def load_mapping(path: Path) -> dict[Any, Any]:
    """Returns the content of a configuration file. Raises a ConfigError if the content is not a mapping."""
    content = load_yaml(path)
    if not isinstance(content, dict):
        raise ConfigError(f"{path} is not a configuration")
    return content


MAX_MANIFEST_BYTES = 1 << 20
"""YAML files larger than this many bytes are refused. Aliases are refused because they could expand even a small file a
millionfold.
"""
