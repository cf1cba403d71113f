"""Derives options from the fields of a dataclass. Both the command line and YAML files use this schema.

A field's metadata contains the option's help and its parser. The parser converts text to a value, or raises ValueError
with a sentence that describes the fault. Scalars in YAML files use the same parsers, so both sources accept and refuse
the same values.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from harness.errors import ConfigError


def user_path(text: str | Path) -> Path:
    """Returns the path with ~ and ~NAME expanded, because the shell does not expand --option=~/x.

    Refuses an empty string, because an unset shell variable expands to an empty string, and Path('') would be the
    working directory.
    """
    if not str(text).strip():
        raise ConfigError(f"{str(text)!r} is not a path: name a file or a folder")
    try:
        return Path(text).expanduser()
    except RuntimeError as e:
        raise ConfigError(f"{text}: this home folder does not exist") from e


def expanded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values with `user_path` applied to every path."""
    return {k: user_path(v) if isinstance(v, Path) else v for k, v in values.items()}


System = Literal["machine", "node", "servers", "nodes"]
MACHINE: System = "machine"
"""Models in the measured process on this machine."""

NODE: System = "node"
"""The instances of a node, which `serve --node` or the run itself starts."""

SERVERS: System = "servers"
"""The servers in --url."""

NODES: System = "nodes"
"""The nodes in --nodes, seen from the process that sends them the queries."""


def write_plain(value: Any) -> str | float:
    """Returns the value if YAML can store it, otherwise its text."""
    return value if isinstance(value, int | float) else str(value)


def option(
    help_text: str,
    *,
    name: str = "",
    parse: Callable[[str], Any] = str,
    write: Callable[[Any], object] = write_plain,
    metavar: str = "NAME",
    choices: tuple[str, ...] = (),
    default: Any = None,
    many: bool = False,
    flag: bool = False,
    group: str = "",
    level: Literal["basic", "expert"] = "basic",
    visible: bool = True,
    of: tuple[System, ...] = (),
    of_one_model: bool = False,
    of_one_run: bool = False,
    repeated: bool = True,
    resets: Sequence[str] = (),
    resets_of_run: Sequence[str] = (),
) -> Any:
    """Returns a dataclass field that is also an option.

    name: the option's key in a file, from which the flag is derived. The default is the field's name. parse: converts
    text to the value, or raises ValueError with a sentence that follows "--flag: ". write: the inverse of `parse`, for
    config.yaml. choices: the allowed values, if they can be listed. many: whether the option may be repeated. If so,
    the field is a tuple, by default (). flag: whether the option takes no value. If so, the field is a bool and
    defaults to False. group: title of the `--help` section that begins with this option; "" continues the previous
    section. The dataclass's GROUP is the title of the first section. level: basic or expert. `--help` shows only basic
    options, `--help-all` shows both. visible: whether the option has a flag. An option without a flag can be set only
    in files.

    Options of a run also have these keywords. of: the kinds of systems under test that use the option; () means all kinds. of_one_model:
    whether a set of models (--models) replaces the option. of_one_run: whether the verbs that make several runs refuse
    the option. repeated: whether a run's config.yaml contains the option, so that `--config RUN` sets it again. resets:
    the fields that a --config file no longer sets once the command line or a later file sets this option.
    resets_of_run: the fields that are reset only if the file is a run's config.yaml, because the run derived them.
    """
    if many or flag:
        default = () if many else False
    return dataclasses.field(
        default=default,
        metadata={
            "name": name,
            "help": help_text,
            "parse": parse,
            "write": write,
            "metavar": metavar,
            "choices": choices,
            "many": many,
            "flag": flag,
            "group": group,
            "level": level,
            "visible": visible,
            "of": of,
            "of_one_model": of_one_model,
            "of_one_run": of_one_run,
            "repeated": repeated,
            "resets": resets,
            "resets_of_run": resets_of_run,
        },
    )


def resolved(parse: Callable[[str], Any] = str, **scope: Any) -> Any:
    """Returns a field without a flag. A run determines the field's value and writes the value to config.yaml.

    scope: further keywords for `option`.
    """
    return option("", parse=parse, visible=False, **scope)


def option_key(field: dataclasses.Field[Any]) -> str:
    return field.metadata["name"] or field.name


def flag_name(key: str) -> str:
    return "--" + key.replace("_", "-")


def parse_values(
    schema: type, raw: Mapping[str, object], source: str, problems: list[str]
) -> dict[str, Any]:
    """Converts texts or YAML scalars (by option key) to values (by field). Appends to `problems` instead of raising
    errors.
    """
    fields = {option_key(f): f for f in dataclasses.fields(schema)}
    values: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in fields:
            problems.append(f"{source}: unknown key {key!r}{_did_you_mean(key, fields)}")
            continue
        if value is None:
            continue
        meta = fields[key].metadata
        given = value if meta["many"] and isinstance(value, list | tuple) else [value]
        parsed = []
        for item in given:
            try:
                parsed.append(_parse_one(meta, item))
            except ValueError as e:
                where = flag_name(key) if source == "command line" else f"{source}: {key}"
                problems.append(f"{where}: {e}")
        if len(parsed) == len(given):
            values[fields[key].name] = tuple(parsed) if meta["many"] else parsed[0]
    return values


def _parse_one(meta: Mapping[str, Any], scalar: object) -> Any:
    if meta["flag"]:
        if not isinstance(scalar, bool):
            raise ValueError(f"{scalar!r} is neither true nor false")
        return scalar
    if isinstance(scalar, bool | dict | list):
        raise ValueError(f"{scalar!r} is not a single value")
    value = meta["parse"](str(scalar))
    if meta["choices"] and value not in meta["choices"]:
        raise ValueError(f"{value!r} is not one of {', '.join(meta['choices'])}")
    return value


def _did_you_mean(key: str, known: Mapping[str, object]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, known, n=1)
    return f": did you mean {near[0]!r}?" if near else ""


def defaults(schema: type, is_meant: Callable[[Mapping[str, Any]], bool]) -> dict[str, Any]:
    """Returns the default of each field whose metadata `is_meant` accepts."""
    return {f.name: f.default for f in dataclasses.fields(schema) if is_meant(f.metadata)}


def visible_fields(schema: type) -> Iterator[dataclasses.Field[Any]]:
    return (f for f in dataclasses.fields(schema) if f.metadata.get("visible"))
