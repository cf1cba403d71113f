"""The program accepts every command in the documentation, and how-to pages answer their question first.

test_readme.py and test_guides.py run the commands on pages that need no server, model file or long run; each verb's
tests run the other commands in a shorter form. This test finds outdated verbs, options and values on any page.
"""

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from harness.cli import verbs
from harness.cli.parser import Parser, read_options
from harness.cli.run_options import _translated
from harness.core.config.options import _parse_one

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted([ROOT / "README.md", *DOCS.rglob("*.md"), *(ROOT / "harness").rglob("README.md")])

PROGRAM = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:python -m harness|mlperf-harness|\./run\.sh)(?: (?P<words>.*))?"
)
FORM = re.compile(r"\[[A-Z-]|\[options\]|\.\.\.|…|(?<= )[A-Z]{3,}$|(?<= )KIND ")
"""A line that matches shows the form of a command, and is not itself a command."""

ENDS = re.compile(r"  +#.*| (?:\||\|\||&&|&|>|2>)(?: .*)?$")
"""Matches comments, and the parts of a line that the shell interprets."""

OF_GRIDS = ("sweep",)
"""Verbs that accept lists of values for a run's options; only the names of the options are checked."""

MOST_WORDS = 600

LOOKED_UP = ("from-other-tools.md",)
"""Pages that begin with a table in which a reader looks up one row."""

DESCRIBED = ("load-hosts.md", "from-other-tools.md", "models-sharing.md")
"""Pages that describe in words the lines that every run prints."""


def lines(text: str) -> Iterator[str]:
    """Yields the lines of code blocks; joins continued lines."""
    is_code = False
    joined = ""
    for line in text.splitlines():
        if line.startswith("```"):
            is_code = not is_code
        elif is_code or line.startswith("    "):
            joined += line.strip()
            if joined.endswith("\\"):
                joined = joined.removesuffix("\\")
                continue
            yield joined
        joined = ""


def commands(page: Path) -> list[list[str]]:
    """Returns the words after the program's name for each command on a page."""
    found = []
    for line in lines(page.read_text(encoding="utf-8")):
        match = PROGRAM.fullmatch(ENDS.sub("", line))
        if match is not None and match["words"] and not FORM.search(match["words"]):
            found.append(shlex.split(match["words"]))
    # `test_readme.py` tests the commands of run.sh.
    return [words for words in found if words[0] != "install"]


@cache
def parser_of(verb: str) -> Parser:
    return verbs.VERBS[verb].parser()


def problems(words: list[str]) -> Iterator[str]:
    if "--" in words:  # `on` runs the command that follows `--`
        at = words.index("--")
        yield from problems(words[at + 1 :])
        words = words[:at]
    verb, rest = verbs.find(words)
    if {"-h", "--help", "--help-all", "--version"} & {*rest}:
        return
    parser = parser_of(verb)
    texts, unknown = read_options(parser, _translated(rest))
    yield from unknown
    for key, text in texts.items():
        field = parser.fields.get(key)
        for item in text if isinstance(text, list) else [text]:
            try:
                if field is not None and verb not in OF_GRIDS:
                    _parse_one(field.metadata, item)
            except ValueError as e:
                yield f"--{key}: {e}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_the_program_accepts_every_command_of_a_page(page: Path) -> None:
    wrong = {shlex.join(words): found for words in commands(page) if (found := [*problems(words)])}
    assert wrong == {}


def test_commands_are_found() -> None:
    text = "    A=1 python -m harness peak \\\n        --scenario server  # a comment\n\n    mlperf-harness runs | head\n"
    found = [PROGRAM.fullmatch(ENDS.sub("", line)) for line in lines(text)]
    assert [one and one["words"] for one in found] == ["peak --scenario server", "runs"]
    assert sum(len(commands(page)) for page in PAGES) > 240
    assert [*problems(["--scenario", "server", "--duraton", "3s"])]
    assert [*problems(["peak", "--scenario", "server", "--slo", "p99"])]


def how_tos() -> list[str]:
    index = (DOCS / "README.md").read_text(encoding="utf-8")
    _, _, table = index.partition("**Begin**")
    return re.findall(r"^\| \[(\S+\.md)\]", table.partition("**Reference**")[0], re.MULTILINE)


@pytest.mark.parametrize("page", how_tos())
def test_a_how_to_answers_its_question_in_a_minute(page: str) -> None:
    """The question, a command, its output and what to do with the output come first, and the background comes after
    them.
    """
    first, *_ = re.split(
        r"^## Details\n", (DOCS / page).read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    _title, question, *rest = [part for part in first.split("\n\n") if part.strip()]
    assert "?" in question
    assert len(first.split()) <= MOST_WORDS or page in LOOKED_UP
    codes = [part for part in rest if part.startswith(("    ", "```"))]
    # The first block may be a file, so a command is expected in the first two blocks.
    assert re.search(r"harness |run\.sh|docker|import", "".join(codes[:2]))
    assert page in DESCRIBED or any(
        not PROGRAM.match(line) for part in codes for line in lines(part + "\n")
    )
