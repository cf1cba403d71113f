"""Completes command lines in the shell with argcomplete and the verbs' parsers. The module also implements the verb
`completion`.

The shell calls the program with `_ARGCOMPLETE` and `COMP_LINE` in the environment. The program then builds only the
parser for the verb in that line, because completion must be fast.
"""

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.cli.parser import Parser
from harness.cli.start.config_files import CONFIG_FLAG, presets
from harness.cli.verbs import DEFAULT, HELP, VERBS, members
from harness.core import registry
from harness.core.console import show

VARIABLE = "_ARGCOMPLETE"
SHELLS = ("bash", "zsh", "fish", "tcsh", "powershell")
RESULTS = Path("results")

_FILES = (
    "FILE",
    "DIR",
    "PATH",
    "PAGE",
    "KEY",
    "MODEL",
    "RUN",
    "SIDE",
    "OUT",
    "TREE",
    "DIM=LENGTHS",
)
"""Placeholders for values that may be files."""


def _runs() -> list[str]:
    """Returns the folders of finished runs, newest first."""
    results = RESULTS.glob("*/result.json")
    return [str(p.parent) for p in sorted(results, key=lambda p: p.stat().st_mtime, reverse=True)]


def _models() -> Iterable[str]:
    from harness.models.manifest.lookup import named_models

    return named_models()


def _configs() -> list[str]:
    return [*presets(), *_runs()]


_NAMES: Mapping[str, Callable[[], Iterable[str]]] = {
    "--model": _models,
    CONFIG_FLAG: _configs,
    "RUN": _runs,
    "SIDE": _runs,
    "DATASET": lambda: [name for name, _ in registry.rows("dataset")],
}
"""Maps an option, or an argument's placeholder, to a function that returns its possible names, except files."""


def complete() -> None:
    """Prints the words that may follow at the cursor, and ends the process."""
    import argcomplete
    from argcomplete.lexers import split_line

    _, _, _, words, _ = split_line(os.environ["COMP_LINE"], int(os.environ["COMP_POINT"]))
    start = int(os.environ[VARIABLE])
    parser, verb_words = _parser_of(words[start:])
    os.environ[VARIABLE] = str(start + verb_words)
    for action in parser._actions:  # noqa: SLF001 - argparse offers no other way
        if action.choices is None:
            action.completer = _completer(parser, action)  # type: ignore[attr-defined]
    options = "long" if words[start:] else False  # on an empty line, only verbs are completed
    argcomplete.autocomplete(
        parser, always_complete_options=options, default_completer=lambda **_: ()
    )


def _parser_of(words: list[str]) -> tuple[argparse.ArgumentParser, int]:
    """Returns a parser for the words after the verb, and the number of words in the verb. words: the words before the
    cursor.
    """
    if not words:
        parser = VERBS[DEFAULT].parser()
        names = dict.fromkeys(name.partition(" ")[0] for name in (*VERBS, HELP))
        parser.add_argument("verb", choices=tuple(names))
        return parser, 0
    first = words[0]
    if first == HELP:
        groups = VERBS[DEFAULT].parser().groups()
        return _choice(*dict.fromkeys([*(n.partition(" ")[0] for n in VERBS), *groups])), 1
    for count in (2, 1):
        if " ".join(words[:count]) in VERBS and len(words) >= count:
            return VERBS[" ".join(words[:count])].parser(), count
    if of_group := [name.partition(" ")[2] for name in members(first)]:
        return _choice(*of_group), 1
    return VERBS[DEFAULT].parser(), 0


def _choice(*words: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("word", choices=words)
    return parser


def _completer(parser: argparse.ArgumentParser, action: argparse.Action) -> Callable[..., Any]:
    """Returns a function that argcomplete calls with `prefix` and other arguments. argcomplete filters the words that
    the function returns.
    """
    from argcomplete.completers import FilesCompleter

    field = parser.fields.get(action.dest) if isinstance(parser, Parser) else None
    metavar = str(action.metavar)
    key = next((name for name in (*action.option_strings, metavar) if name in _NAMES), None)

    def words(prefix: str, **_: object) -> list[str]:
        if field is not None and field.metadata["choices"]:
            return list(field.metadata["choices"])
        if action.dest in registry.KINDS:
            return [name for name, _ in registry.rows(action.dest)]
        names = [] if key is None else list(_NAMES[key]())
        is_file = metavar in _FILES or metavar.startswith("FILE")
        return [*names, *(FilesCompleter()(prefix) if is_file else ())]

    return words


def completion(arguments: list[str]) -> int:
    parser = Parser(
        "completion",
        'Print shell code that completes verbs, options and names: eval "$(mlperf-harness '
        'completion bash)".',
        "[SHELL]",
    )
    here = Path(os.environ.get("SHELL", "")).name
    default = here if here in SHELLS else SHELLS[0]
    parser.text(
        "shell",
        "SHELL",
        f"{', '.join(SHELLS)} (default: your shell)",
        nargs="?",
        choices=SHELLS,
        default=default,
    )
    import argcomplete

    options = parser.parse_args(arguments)
    show(argcomplete.shellcode(["mlperf-harness"], shell=options.shell).rstrip("\n"))
    return 0
