"""Start-up code without an owner and changed files of the harness cause doubts; code with an owner does not."""

from typing import Any

import pytest

from harness.results.verdict.code_doubts import code, foreign

CLEAN = {"sha256": "a" * 64, "known_by": "commit", "differing": 0, "first": []}
OWNED = {"name": "hook.pth", "sha256": "b" * 64, "owner": "setuptools"}
ODD = {"name": "sitecustomize", "sha256": "c" * 64, "owner": None}


def codes(harness: dict[str, Any], startup: list[dict[str, Any]] | None) -> list[str]:
    return [doubt.code for doubt in code({"harness": {**CLEAN, **harness}, "startup": startup})]


def test_a_release_or_a_commit_with_owned_start_up_code_is_not_doubted() -> None:
    assert codes({}, [OWNED]) == []
    assert codes({"known_by": "release"}, []) == []
    assert [*code(None)] == []


@pytest.mark.parametrize(
    "harness", [{"known_by": None, "differing": None}, {"differing": 2, "first": ["harness/a.py"]}]
)
def test_files_of_no_release_and_no_commit_are_doubted(harness: dict[str, Any]) -> None:
    assert codes(harness, [OWNED]) == ["harness-changed"]


@pytest.mark.parametrize("startup", [[OWNED, ODD], None])
def test_code_without_an_owner_or_without_a_list_is_doubted(startup: Any) -> None:
    assert codes({}, startup) == ["startup-code"]


def test_foreign_code_is_the_code_without_an_owner() -> None:
    assert [*foreign({"harness": CLEAN, "startup": [OWNED, ODD]})] == [ODD]
    assert [*foreign(None)] == []
