"""The table of verbs: dispatch, the lists in the help, and the errors for unknown verbs."""

from importlib import import_module

import pytest

from harness.cli import data, verbs
from harness.cli.main import main
from harness.cli.verbs import DEFAULT, FRONT, VERBS, Verb, find
from harness.core.console import show
from tests.builders.refusals import refused

NAMES = (
    "run, peak, sweep, tune, overhead, profile, advise, bricks, cold, pitfalls, machine, probe, serve, load-host, compare, rerun, check, score, publish, export, report, "
    "runs, browse, on, list, init, schema, completion, data, arrivals, dashboards, submit, endpoints"
)
OF_SUBMIT = "submit plan, submit run, submit pack, submit check"


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_every_row_names_a_function_and_describes_the_verb(verb: Verb) -> None:
    module, function = verb.target.split(":")
    assert callable(getattr(import_module(f"harness.cli.{module}"), function))
    assert verb.about[0].islower()
    assert len(verb.about) <= 75


@pytest.mark.parametrize(
    ("words", "name", "rest"),
    [
        ([], FRONT, []),
        (["--help"], FRONT, ["--help"]),
        (["--help-all"], DEFAULT, ["--help-all"]),
        (["--scenario", "server"], DEFAULT, ["--scenario", "server"]),
        (["run", "peak"], "run", ["peak"]),
        (["submit", "run", "--work", "x"], "submit run", ["--work", "x"]),
        (["data", "check", "digits"], "data check", ["digits"]),
        (["help"], FRONT, ["--help"]),
        (["help", "peak"], "peak", ["--help"]),
        (["help", "submit"], "submit", ["--help"]),
        (["help", "submit", "run"], "submit run", ["--help"]),
        (["submit", "--help"], "submit", ["--help"]),
    ],
)
def test_a_verb_is_found_with_the_words_after_it(
    words: list[str], name: str, rest: list[str]
) -> None:
    assert find(words) == (name, rest)


def test_a_new_verb_needs_only_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(data, "greet", _greet, raising=False)
    row = Verb("data:greet", "greet the user")
    monkeypatch.setattr(verbs, "VERBS", {**VERBS, "data greet": row})
    assert main(["data", "greet", "you"]) == 7
    assert capsys.readouterr().out == "hello you\n"
    assert main(["data", "--help"]) == 0
    assert "  data greet  greet the user\n" in capsys.readouterr().out


def _greet(arguments: list[str]) -> int:
    show(" ".join(["hello", *arguments]))
    return 7


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["peek"], "no verb 'peek': did you mean 'peak'?"),
        (["xyzzy"], f"no verb 'xyzzy': choose from {NAMES}"),
        (["sub", "run"], "no verb 'sub': did you mean 'submit'?"),
        (["submit", "pakc"], "no verb 'submit pakc': did you mean 'submit pack'?"),
        (["data", "xyzzy"], "no verb 'data xyzzy': choose from data check"),
        (["data"], "data needs a verb: choose from data check"),
        (["submit"], f"submit needs a verb: choose from {OF_SUBMIT}"),
        (["submit", "foo"], f"no verb 'submit foo': choose from {OF_SUBMIT}"),
    ],
)
def test_an_unknown_verb_is_reported_in_one_line(words: list[str], line: str) -> None:
    """Bugs: `submit` without a verb ended with status 0, and `submit foo` suggested `submit run`."""
    assert refused(*words) == [line]


@pytest.mark.parametrize("words", [[], ["--help"], ["-h"], ["help"]])
def test_the_first_page_has_a_description_then_examples_then_verbs(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the help listed the verbs after 110 lines of options, and a command without words printed one line."""
    # An empty command line ends with status 2, because a script whose $OPTIONS is empty must fail.
    assert main(words) == (0 if words else 2)
    page = capsys.readouterr().out
    parts = ("mlperf-harness measures", "usage: ", "\nexamples:\n", "\nverbs:\n", "VERB --help` ")
    begins = [page.index(part) for part in parts]
    assert begins == sorted(begins)
    assert page[begins[2] : begins[3]].count("\n  python -m harness ") == 3
    listed = page[begins[3] : begins[4]].splitlines()
    assert [line[2:21].strip() for line in listed if line.startswith("  ")] == [*VERBS]
    assert len(page.splitlines()) <= 58


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_verb_builds_its_parser_without_doing_anything(verb: Verb) -> None:
    assert verb.parser().prog.startswith("python -m harness")
