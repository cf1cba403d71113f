"""The tables of option names contain only existing options and fields."""

from dataclasses import fields

import pytest

from harness.cli.parser import Parser, read_options
from harness.cli.run import parser
from harness.cli.run_options import ALIASES, run_parser
from harness.core.config.run_config import RunConfig
from harness.search.options import PeakOptions

FIELDS = {field.name for field in fields(RunConfig)}
FLAGS = {flag for action in parser()._actions for flag in action.option_strings}


def test_an_alias_names_an_option_and_hides_none() -> None:
    assert {alias.ours for alias in ALIASES.values()} <= FLAGS
    assert not FLAGS & ALIASES.keys()


def test_an_option_resets_other_fields_but_not_itself() -> None:
    for field in fields(RunConfig):
        reset = (*field.metadata["resets"], *field.metadata["resets_of_run"])
        assert set(reset) <= FIELDS - {field.name}
        assert len(reset) == len(set(reset))


def test_the_options_of_a_verb_precede_the_run_options() -> None:
    page = run_parser("peak", "about", ("",), (PeakOptions, RunConfig), "notes").format_full_help()
    begins = [page.index(text) for text in ("about", "usage:", "notes", "--probe", "--scenario")]
    assert begins == sorted(begins)
    assert page.index("--help") > page.index("--metrics-linger")


@pytest.mark.parametrize(
    ("words", "texts", "problems"),
    [
        ([], {}, []),
        (["--flag", "--name", "x"], {"flag": True, "name": "x"}, []),
        (["--nam", "x"], {}, ["unknown option --nam: did you mean --name?"]),
        (["x", "--y=1", "z"], {}, [
            "unexpected argument 'x': see --help",
            "unknown option --y: see --help",
            "unexpected argument 'z': see --help",
        ]),
    ],
)  # fmt: skip
def test_only_given_options_are_read_and_unknown_words_are_problems(
    words: list[str], texts: dict[str, object], problems: list[str]
) -> None:
    small = Parser("p", "", "")
    small.add_argument("--flag", action="store_true")
    small.add_argument("--name")
    assert read_options(small, words) == (texts, problems)
