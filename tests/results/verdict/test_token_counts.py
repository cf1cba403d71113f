"""Contradictory token counts are a reason for INVALID; counts that may be right are a doubt."""

from dataclasses import replace
from typing import Any

import pytest

from harness.results.verdict import token_counts, witnesses
from tests.builders.remote_runs import TOKENS, remote


def codes(**told: Any) -> tuple[list[str], list[str]]:
    """Returns (reasons, doubts) about the counts."""
    run = remote(tokens={**TOKENS, **told})
    return (
        [reason.code for reason in token_counts.reasons(run)],
        [doubt.code for doubt in token_counts.doubts(run)],
    )


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({}, ([], [])),
        ({"contradictions": {"why": 1}}, (["tokens-contradicted"], [])),
        ({"long_answers": 1}, (["tokens-contradicted"], [])),
        ({"doubts": {"why": 1}}, ([], ["tokens-doubtful"])),
        ({"long_prompts": 1}, ([], ["prompt-changed"])),
        ({"varied_prompts": 1}, ([], ["prompt-changed"])),
        ({"finish_reasons": {"": 1}}, ([], ["ends-unexplained"])),
        ({"finish_reasons": {"stop": 1}}, ([], [])),
        ({"streams": {"several": 10, "at_once": 5}}, ([], [])),
        ({"streams": {"several": 10, "at_once": 6}}, ([], ["tokens-at-once"])),
    ],
)
def test_token_counts_of_the_server_are_judged(
    told: dict[str, Any], expected: tuple[list[str], list[str]]
) -> None:
    assert codes(**told) == expected


def test_a_contradiction_names_its_answers() -> None:
    (reason,) = token_counts.reasons(remote(tokens={**TOKENS, "contradictions": {"why": 7}}))
    assert reason.text == "the server's token counts: why (7 of 700 answers)"


@pytest.mark.parametrize(("early_ns", "count"), [(-1, 0), (1, 1)])
def test_a_first_token_before_its_request_is_impossible(early_ns: int, count: int) -> None:
    run = remote()
    assert run.done is not None
    first_ns = {"first_token_ns": run.done.columns["sent_ns"] - early_ns}
    done = replace(run.done, columns={**run.done.columns, **first_ns})
    found = [*witnesses.journal_reasons(replace(run, done=done), None)]
    assert [reason.code for reason in found] == ["journal-impossible"] * count
