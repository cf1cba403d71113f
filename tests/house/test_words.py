"""The prose rules of docs/contributing.md that a pattern can check, in docstrings, messages and docs."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

OPENER = re.compile(r"\s*(?:(?:Of|What|The same|As|Where|That|Those)\b(?! is\b)|An? \w*Error:)")
"""A docstring must begin with a verb or with the noun that it describes."""

RULES = {
    "say `is not a` or `has no`": re.compile(
        r"(?<!there )(?<!There )\b(?:is|are|was|were) (?:no|none)\b"
        r"(?! (?:longer|more|less|fewer|better|worse|faster|slower|larger|smaller|one)\b)"
        r"|\b(?:has|have|had) not (?:an?|the|its|their|one|enough)\b"
    ),
    "repeat the noun": re.compile(
        r"\b(?:those of|that of|one that|so many|by which|as above|likewise|anew|meanwhile)\b",
        re.IGNORECASE,
    ),
    "programs report, print or return": re.compile(r"\b(?:tells?|told)\b(?! apart)", re.IGNORECASE),
    "say `significantly`": re.compile(r"\bcertainly\b", re.IGNORECASE),
    "drop `of its own`": re.compile(r"(?<=\w )of (?:its|their) own\b"),
}

TEST_NAME = re.compile(
    r"_(?:told|tells?|said)(?:_|$)|_is_none(?:_|$)|^test_what_|_is_no_(?!longer|more|less)"
)
LONGEST_NAME = 70

PLACES = ("harness", "backends", "datasets", "accuracy", "scenarios", "pytest_mlperf_harness.py")
NOT_OURS = ("CHANGELOG.md",)
"""Files that are not checked, because the history keeps its old words."""


def texts(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yields (line, text, whether it is a docstring) for each string of a module that contains a space."""
    tree = ast.parse(path.read_text())
    docstrings = {
        id(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value, id(node) in docstrings


@cache
def tracked() -> list[Path]:
    names = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True).split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def faults(text: str, is_docstring: bool = False) -> list[str]:
    found = [f"{rule}: …{text[max(m.start() - 30, 0) : m.end() + 30]}…" for rule, pattern in RULES.items()
             for m in pattern.finditer(text)]  # fmt: skip
    if is_docstring and OPENER.match(text):
        found.append(f"begin with a verb or a noun: {text[:60]}")
    return found


def modules() -> list[Path]:
    return [p for p in tracked() if p.suffix == ".py" and p.relative_to(ROOT).parts[0] in PLACES]


@pytest.mark.parametrize("is_docstring", [False, True])
def test_strings_of_modules_follow_the_rules(is_docstring: bool) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {fault}"
        for path in modules()
        for line, text, docstring in texts(path)
        if docstring is is_docstring
        for fault in faults(text, docstring)
    ]
    assert not found, "\n".join(found)


def test_names_of_tests_follow_the_rules() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}: {node.name}"
        for path in tracked()
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] == "tests"
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_clumsy(node.name)
    ]
    assert not found, "\n".join(found)


def is_clumsy(name: str) -> bool:
    is_test = name.startswith("test_")
    return is_test and (TEST_NAME.search(name) is not None or len(name) > LONGEST_NAME)


@pytest.mark.parametrize(
    "name", ["test_it_is_told", "test_what_fails", "test_a_is_no_b", "test_" + "a" * 66]
)
def test_clumsy_names_of_tests_are_found(name: str) -> None:
    assert is_clumsy(name)
    assert not is_clumsy("test_a_lost_node_ends_the_run_and_is_no_longer_asked")


def test_docs_follow_the_rules() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {fault}"
        for path in tracked()
        if path.suffix == ".md" and path.name not in NOT_OURS and "golden" not in path.parts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        for fault in faults(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        *("a.onnx is no ONNX model", "as those of the run", "the server tells its models"),
        *(
            "a stream of its own",
            "it has not enough memory",
            "Read anew.",
            "It is certainly slower.",
        ),
    ],
)
def test_a_fault_of_each_rule_is_found(text: str) -> None:
    assert len(faults(text)) == 1


@pytest.mark.parametrize("text", ["there is no file", "it is no longer", "it has not been run"])
def test_plain_words_are_accepted(text: str) -> None:
    assert faults(text) == []


@pytest.mark.parametrize(("text", "is_fault"), [("Of the run.", True), ("Rows of a run.", False)])
def test_a_docstring_begins_with_its_subject(text: str, is_fault: bool) -> None:
    assert bool(faults(text, is_docstring=True)) is is_fault
