"""One schema for the command line and for YAML: the metadata of a config field.

A field carries its parser, which turns text into the value or raises ValueError with a sentence.
YAML scalars go through the same parser, so both sources accept and refuse the same things.
"""

import argparse
import dataclasses
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from harness.errors import ConfigError

MOST_COLUMNS = 100
"""Width of a help page on a wider terminal."""


class HelpFormatter(argparse.HelpFormatter):
    """Prints help texts as they are written: `%` is a character, not a format.

    A description or epilog of several lines keeps its lines; one of a single line is wrapped.
    """

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=min(shutil.get_terminal_size().columns - 2, MOST_COLUMNS))

    def _get_help_string(self, action: argparse.Action) -> str:
        """argparse formats the result with %, which turns the doubled signs into single ones."""
        return (action.help or "").replace("%", "%%")

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """Wrong arguments are a ConfigError: one line a problem and exit status 2, in our words."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**{"formatter_class": HelpFormatter, **how})
        # -3s is a (wrong) value, not an unknown option: as argparse itself has it from Python 3.14.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Raises one ConfigError with every unknown option and unexpected argument."""
        del namespace
        options = parse_known(self, args)
        if options.problems:
            raise ConfigError("\n".join(options.problems))
        del options.problems
        return options

    def error(self, message: str) -> NoReturn:
        """message: argparse's, e.g. `argument --duration: expected one argument`."""
        required = "the following arguments are required: "
        if message.startswith(required):
            names = message.removeprefix(required).split(", ")
            raise ConfigError("\n".join(map(self._missing, names)))
        argument = re.fullmatch(r"argument (\S+): (.*)", message, re.DOTALL)
        raise ConfigError(self._in_our_words(argument[1], argument[2]) if argument else message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            text = f"{value!r} is not one of {', '.join(map(str, action.choices))}"
            raise argparse.ArgumentError(action, text)

    def _missing(self, name: str) -> str:
        (help_text,) = [a.help for a in self._actions if name in (*a.option_strings, a.metavar)]
        return f"{name} is missing: {help_text or 'see --help'}"

    def _in_our_words(self, name: str, message: str) -> str:
        """name: of an option or positional argument. message: what argparse says about its value."""
        if message == "expected one argument":
            return f"{name} needs a value: {name} {self._option_string_actions[name].metavar}"
        for theirs, ours in _ARGPARSE_MESSAGES.items():
            if match := re.fullmatch(theirs, message, re.DOTALL):
                return f"{name}{match.expand(ours)}"
        return f"{name}: {message}"


_ARGPARSE_MESSAGES = {
    r"ignored explicit argument (.*)": r" takes no value: drop \1",
    r"invalid int value: (.*)": r": \1 is not a whole number",
}
"""What argparse says about a value -> what follows the argument's name in place of it."""


def parse_known(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> argparse.Namespace:
    """Like parse_args, but every unknown option becomes an entry of `problems`."""
    from difflib import get_close_matches

    options, unknown = parser.parse_known_args(arguments)
    known = list(parser._option_string_actions)  # noqa: SLF001 - argparse offers no other way
    problems = []
    after_unknown = False  # the word after an unknown option is most likely its value
    for word in unknown:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            if not after_unknown:
                problems.append(f"unexpected argument {word!r}: see --help")
            after_unknown = False
            continue
        after_unknown = "=" not in word
        near = get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]}?" if near else "see --help"
        problems.append(f"unknown option {name}: {hint}")
    options.problems = problems
    return options


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


def add_options(parser: argparse.ArgumentParser, *schemas: type) -> None:
    """The visible fields of the schemas, in their groups; what is not given is None."""
    groups: dict[str, Any] = {}
    for field in chain.from_iterable(map(visible_fields, schemas)):
        meta = field.metadata
        group = groups.get(meta["group"]) or parser.add_argument_group(meta["group"])
        groups[meta["group"]] = group
        kind: dict[str, Any] = {"action": "store_true"}
        if not meta["flag"]:
            kind = {"metavar": meta["metavar"]}
            if meta["many"]:
                kind["action"] = "append"
        key = option_key(field)
        group.add_argument(flag_name(key), dest=key, default=None, help=meta["help"], **kind)


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


def ignored_beside(name: str, given: Mapping[str, object], shown: Sequence[str]) -> Iterator[str]:
    """The problem with options that --NAME, which reads a folder and runs nothing, would not look at.

    given: keys of what is on the command line. shown: those that say how it is shown.
    """
    others = [flag_name(key) for key in given if key not in (name, *shown)]
    if name in given and others:
        yield f"--{name} reads a folder and runs nothing: drop {', '.join(others)}"
