"""One schema for the command line and for YAML: the metadata of a config field.

A field carries its parser, which turns text into the value or raises ValueError with a sentence.
YAML scalars go through the same parser, so both sources accept and refuse the same things.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.errors import ConfigError


def user_path(text: str | Path) -> Path:
    """With ~ and ~NAME as the shell reads them, which leaves them alone in --option=~/x."""
    try:
        return Path(text).expanduser()
    except RuntimeError as e:
        raise ConfigError(f"{text}: there is no such home folder") from e


def expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """With every path as `user_path` reads it."""
    return {k: user_path(v) if isinstance(v, Path) else v for k, v in values.items()}


def option(
    help_text: str,
    *,
    name: str = "",
    parse: Callable[[str], Any] = str,
    metavar: str | None = None,
    choices: tuple[str, ...] = (),
    default: Any = None,
    many: bool = False,
    flag: bool = False,
    group: str = "more",
    visible: bool = True,
) -> Any:
    """A dataclass field that is also a command-line option. `many`: may be repeated, a tuple."""
    return dataclasses.field(
        default=() if many else default,
        metadata={
            "name": name,
            "help": help_text,
            "parse": parse,
            "metavar": metavar,
            "choices": choices,
            "many": many,
            "flag": flag,
            "group": group,
            "visible": visible,
        },
    )


def option_key(field: dataclasses.Field[Any]) -> str:
    """The key in YAML: 'duration' for the field duration_ns."""
    return field.metadata["name"] or field.name


def flag_name(key: str) -> str:
    return "--" + key.replace("_", "-")


def parse_values(
    schema: type, raw: Mapping[str, object], source: str, problems: list[str]
) -> dict[str, Any]:
    """Text or YAML scalars -> values, by field name; every problem is appended, none raised."""
    fields = {option_key(f): f for f in dataclasses.fields(schema)}
    values: dict[str, Any] = {}
    for name, given in raw.items():
        if name not in fields:
            problems.append(f"{source}: unknown key {name!r}{_did_you_mean(name, fields)}")
            continue
        if given is None:
            continue
        try:
            values[fields[name].name] = _parse_one(fields[name].metadata, given)
        except ValueError as e:
            where = flag_name(name) if source == "command line" else f"{source}: {name}"
            problems.append(f"{where}: {e}")
    return values


def _parse_one(meta: Mapping[str, Any], given: object) -> Any:
    if meta["flag"]:
        if not isinstance(given, bool):
            raise ValueError(f"{given!r} is neither true nor false")
        return given
    if meta["many"]:
        items = given if isinstance(given, list | tuple) else [given]
        return tuple(_parse_text(meta, item) for item in items)
    return _parse_text(meta, given)


def _parse_text(meta: Mapping[str, Any], given: object) -> Any:
    if isinstance(given, bool | dict | list):
        raise ValueError(f"{given!r} is not a single value")
    value = meta["parse"](str(given))
    if meta["choices"] and value not in meta["choices"]:
        raise ValueError(f"{value!r} is not one of {', '.join(meta['choices'])}")
    return value


def _did_you_mean(name: str, known: Mapping[str, object]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, known, n=1)
    return f": did you mean {near[0]!r}?" if near else ""


def visible_fields(schema: type) -> Iterator[dataclasses.Field[Any]]:
    return (f for f in dataclasses.fields(schema) if f.metadata.get("visible"))
