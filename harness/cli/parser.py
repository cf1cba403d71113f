"""Parses a verb's words with argparse. Help pages are readable, and errors suggest the next step.

Every verb creates one `Parser`. Options that may also be set in a file come from a schema
(harness/core/config/options.py) through `add_options`. All other options come from `add_argument`. `--help` prints the
basic options, and `--help-all` also prints the expert options. If a group contains expert options, the short page lists
the group's basic options under a shared title.
"""

import argparse
import dataclasses
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, ClassVar, NoReturn

from harness.core.config.options import flag_name, option_key, visible_fields
from harness.core.console import program, show
from harness.errors import ConfigError, refuse

MOST_COLUMNS = 100
"""Maximum width of a help page, in columns, even if the terminal is wider."""

MOST_VERBS = 3
"""Maximum number of verbs in the message about an option that only other verbs accept."""

ALMOST_EQUAL = 0.9
"""If an unknown option is at least this similar to a known option (difflib's ratio), the unknown option is reported as
a typing mistake, such as `--round` for `--rounds`.
"""

_ARGPARSE_MESSAGES = {
    r"ignored explicit argument (.*)": r" takes no value: drop \1",
    r"invalid int value: (.*)": r": \1 is not a whole number",
}
"""Maps a pattern for argparse's message about a value to the text that replaces it, which follows the argument's name.
"""


BASIC = "basic options"
"""Title on the short page for basic options whose group also has expert options."""


class Built(Exception):
    """Raised by a verb's parser inside `building`: the caller gets the parser, and the verb does not run."""

    def __init__(self, parser: "Parser") -> None:
        self.parser = parser


_is_building = False


@contextmanager
def building() -> Iterator[None]:
    """Inside this context, calling a verb raises `Built` with the verb's parser instead of parsing the words."""
    global _is_building  # noqa: PLW0603 - a process has one command line
    _is_building = True
    try:
        yield
    finally:
        _is_building = False


def _no_verbs(flag: str) -> Iterable[str]:
    del flag
    return ()


class HelpFormatter(argparse.HelpFormatter):
    """Prints help texts exactly as they are written. `%` is an ordinary character, and only one-line texts are wrapped."""

    def __init__(self, prog: str) -> None:
        columns = shutil.get_terminal_size().columns
        super().__init__(prog, max_help_position=30, width=min(columns - 2, MOST_COLUMNS))

    def _get_help_string(self, action: argparse.Action) -> str:
        """Doubles the percent signs, because argparse formats the result with %."""
        return (action.help or "").replace("%", "%%")

    def _split_lines(self, text: str, width: int) -> list[str]:
        """Breaks lines only between words, so that users can copy a folder's name."""
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return "".join(indent + line for line in text.splitlines(keepends=True))
        return super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that raises a ConfigError (exit status 2) with one line per wrong argument."""

    verbs_with: ClassVar[Callable[[str], Iterable[str]]] = staticmethod(_no_verbs)
    """Function that returns the verbs that accept an option. harness/cli/verbs.py, which imports this module, sets the
    function.
    """

    def __init__(self, verb: str, about: str, *usages: str, notes: str = "") -> None:
        """verb: empty for the page about the whole program. usages: forms of the arguments after the verb. notes: text
        between the usage and the options, such as examples.
        """
        self._verb = verb
        called = f"{program()} {verb}".strip()
        super().__init__(
            prog=called,
            usage="\n       ".join(f"{called} {words}".strip() for words in usages).replace(
                "%", "%%"
            ),
            formatter_class=HelpFormatter,
            allow_abbrev=False,
            add_help=False,
        )
        self._about = about
        self._notes = notes
        self._positionals.title = "arguments"
        self._optionals.title = "general"
        self._expert: set[argparse.Action] = set()
        self.fields: dict[str, dataclasses.Field[Any]] = {}
        """Options that come from schemas, by key."""
        self.add_argument("-h", "--help", action="help", help="show this help and exit")
        self._help_all = self.add_argument(
            "--help-all", action=_HelpAll, nargs=0, help=argparse.SUPPRESS
        )
        # With this pattern, -3s counts as a (wrong) value instead of an unknown option, as in argparse itself from
        # Python 3.14 onwards.
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def text(self, name: str, metavar: str, about: str, **more: Any) -> None:
        """Adds an argument or option whose value is a string. The argument's default is None."""
        self.add_argument(name, metavar=metavar, help=about, **more)

    def flag(self, name: str, about: str) -> None:
        self.add_argument(name, action="store_true", help=about)

    def set_helps(self, texts: Mapping[str, str | None]) -> None:
        """Replaces help texts by option key. None hides an option, because the verb refuses it."""
        for action in self._actions:
            if action.dest in texts:
                action.help = texts[action.dest] or argparse.SUPPRESS

    def has(self, flag: str) -> bool:
        return flag in self._option_string_actions

    def shows(self, flag: str) -> bool:
        """Returns whether the help pages show the option."""
        action = self._option_string_actions.get(flag)
        return action is not None and action.help is not argparse.SUPPRESS

    def add_option(self, group: argparse._ArgumentGroup, field: "dataclasses.Field[Any]") -> None:
        """Adds an option to a group in this parser. field: a field of a schema (core/config/options.py)."""
        meta, key = field.metadata, option_key(field)
        self.fields[key] = field
        kind: dict[str, Any] = {"action": "store_true"}
        if not meta["flag"]:
            kind = {"metavar": meta["metavar"], "action": "append" if meta["many"] else "store"}
        action = group.add_argument(
            flag_name(key), dest=key, default=None, help=meta["help"], **kind
        )
        if meta["level"] == "expert":
            self._expert.add(action)
            self._help_all.help = "also print the expert options"

    def format_help(self) -> str:
        """Returns the short page: the verb's purpose, usage, notes, basic and general options, and how to see the other
        options.
        """
        shown: dict[str, list[argparse.Action]] = {}
        for title, actions in self._groups():
            basic = [action for action in actions if action not in self._expert]
            shown.setdefault(title if len(basic) == len(actions) else BASIC, []).extend(basic)
        return self._page(shown, self._more())

    def format_full_help(self) -> str:
        """Returns the page that lists all options."""
        return self._page(dict(self._groups()), "")

    def groups(self) -> Mapping[str, str]:
        """Maps the name of each group in `help GROUP` to its part of the page."""
        return {
            _group_name(title): self._section(title, actions) for title, actions in self._groups()
        }

    def option_groups(self) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Yields each group's title and actions, limited to visible options that a file may contain."""
        for title, actions in self._groups():
            if in_files := [action for action in actions if action.dest in self.fields]:
                yield title, in_files

    def _groups(self) -> Iterator[tuple[str, list[argparse.Action]]]:
        """Yields the title and the visible actions of each group that has visible actions. The group of general options
        comes last.
        """
        for group in sorted(self._action_groups, key=lambda group: group is self._optionals):
            actions = group._group_actions  # noqa: SLF001 - argparse offers no other way
            if shown := [a for a in actions if a.help is not argparse.SUPPRESS]:
                yield str(group.title), shown

    def _page(self, groups: Mapping[str, list[argparse.Action]], more: str) -> str:
        about = self._get_formatter()
        about.add_text(self._about)
        sections = [self._section(title, actions) for title, actions in groups.items() if actions]
        parts = (about.format_help(), self.format_usage(), self._notes, *sections, more)
        return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"

    def _section(self, title: str, actions: Sequence[argparse.Action]) -> str:
        formatter = self._get_formatter()
        formatter.start_section(title)
        formatter.add_arguments(actions)
        formatter.end_section()
        return formatter.format_help()

    def _more(self) -> str:
        """Returns a line that states how many options the short page omits and how to see them, or "" if the short page
        shows all options.
        """
        names, hidden = [], 0
        for title, actions in self._groups():
            if expert := self._expert.intersection(actions):
                names.append(_group_name(title))
                hidden += len(expert)
        if not hidden:
            return ""
        text = (
            f"{hidden} more options: `{self.prog} --help-all`, or `{program()} help GROUP`, where GROUP is "
            f"{' or '.join(filter(None, (', '.join(names[:-1]), names[-1])))}"
        )
        return textwrap.fill(text, MOST_COLUMNS, break_on_hyphens=False, break_long_words=False)

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: None = None
    ) -> argparse.Namespace:
        """Raises a single ConfigError that lists every unknown option and unexpected argument."""
        del namespace
        options, problems = _parsed(self, args)
        refuse(problems)
        return options

    def error(self, message: str) -> NoReturn:
        """Raises a ConfigError. message: argparse's message, such as `argument --duration: expected one argument`."""
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
        """Rewords argparse's message about a value. name: the option or positional argument."""
        if message == "expected one argument":
            return f"{name} needs a value: {name} {self._option_string_actions[name].metavar}"
        for theirs, ours in _ARGPARSE_MESSAGES.items():
            if match := re.fullmatch(theirs, message, re.DOTALL):
                return f"{name}{match.expand(ours)}"
        return f"{name}: {message}"


def _group_name(title: str) -> str:
    """Returns the first word of the title, such as `instances` for `instances and batches`."""
    return re.split("[ ,]", title.lower())[0]


def read_options(
    parser: argparse.ArgumentParser, arguments: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    """Maps the key of each option on the command line to its text; also returns the problems. The value of a flag is
    True.

    Unlike `parse_args`, this function returns unknown options as problems, so that the caller can report all problems
    together.
    """
    options, problems = _parsed(parser, arguments)
    texts = {key: value for key, value in vars(options).items() if value not in (None, False)}
    return texts, problems


def _parsed(
    parser: argparse.ArgumentParser, arguments: Sequence[str] | None
) -> tuple[argparse.Namespace, list[str]]:
    """Returns the values, and a problem for each argument that the parser does not know."""
    if _is_building and isinstance(parser, Parser):
        raise Built(parser)
    options, unknown = parser.parse_known_args(arguments)
    known = [
        name
        for action in parser._actions  # noqa: SLF001 - argparse offers no other way
        for name in action.option_strings or [str(action.metavar)]
    ]
    problems = []
    after_unknown = False  # after an unknown option, the next word is probably its value
    for word in unknown:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            if not after_unknown:
                is_first = arguments is not None and [word] == [*arguments[:1]]
                is_model = "--model" in known and (is_first or word.endswith(".onnx"))
                hint = f"did you mean --model {word}?" if is_model else "see --help"
                problems.append(f"unexpected argument {word!r}: {hint}")
            after_unknown = False
            continue
        after_unknown = "=" not in word
        problems.append(f"unknown option {name}: {_hint(name, known)}")
    return options, [*dict.fromkeys(problems)]


def _hint(name: str, known: Sequence[str]) -> str:
    """Returns the first hint that exists: a nearly identical option of this verb, the verbs that accept the option, or
    a similar option.

    known: this verb's options and the metavars of its positional arguments.
    """
    if (alone := name.lstrip("-").upper()) in known:
        return f"pass {alone} alone, without an option"
    word, words = name.lstrip("-"), [option.lstrip("-") for option in known]
    same = get_close_matches(word, words, n=1, cutoff=ALMOST_EQUAL)
    verbs = [] if same else [f"`{verb}`" for verb in Parser.verbs_with(name)]
    if verbs:
        more = " and others" if len(verbs) > MOST_VERBS else ""
        return f"it is an option of {', '.join(verbs[:MOST_VERBS])}{more}"
    near = same or get_close_matches(word, words, n=1)
    return f"did you mean --{near[0]}?" if near else "see --help"


class _HelpAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        assert isinstance(parser, Parser)
        show(parser.format_full_help().rstrip("\n"))
        parser.exit()


def add_options(parser: Parser, *schemas: type) -> Mapping[str, argparse._ArgumentGroup]:
    """Adds the visible fields of the schemas as options with the default None. Returns the options' groups by title."""
    groups: dict[str, argparse._ArgumentGroup] = {}
    title = ""
    pairs = ((schema, field) for schema in schemas for field in visible_fields(schema))
    for schema, field in pairs:
        title = field.metadata["group"] or getattr(schema, "GROUP", "") or title
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        parser.add_option(groups[title], field)
    return groups
