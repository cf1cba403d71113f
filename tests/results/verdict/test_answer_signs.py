"""A server is doubted if many of its answers show a sign, but not if only a few do."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.core.codes import Reason
from harness.core.units import NS_PER_MS
from harness.remote import Sign
from harness.results.verdict import answer_signs, token_counts
from tests.builders.remote_runs import TOKENS, remote


def doubts(
    about: Mapping[str, Any] | None = None, prompts: Any = None, **told: Any
) -> list[Reason]:
    run = remote(tokens={**TOKENS, **told})
    assert run.ended is not None
    return [*token_counts.doubts(replace(run, ended={**run.ended, "prompts": prompts}), about)]


def codes(about: Mapping[str, Any] | None = None, prompts: Any = None, **told: Any) -> list[str]:
    return [doubt.code for doubt in doubts(about, prompts, **told)]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"signs": {Sign.FEWER: 35}}, []),
        ({"signs": {Sign.FEWER: 36}}, ["tokens-doubtful"]),
        ({"signs": {Sign.REPEATED: 175}}, []),
        ({"signs": {Sign.REPEATED: 176}}, ["tokens-doubtful"]),
        ({"signs": {Sign.UNSEEN: 176}}, ["tokens-doubtful"]),
        ({"signs": {Sign.LATE_COUNT: 176}}, ["tokens-doubtful"]),
        ({"tails": 40, "tails_at_once": 10}, []),
        ({"tails": 40, "tails_at_once": 11}, ["tokens-doubtful"]),
        ({"signs": {Sign.NO_ANSWER: 36}}, ["reasoning-cut"]),
        ({"signs": {Sign.NO_ANSWER: 35}}, []),
        ({"long_answered": 40, "alike_prompts": 20}, []),
        ({"long_answered": 40, "alike_prompts": 21}, ["answers-alike"]),
        ({"long_answered": 9, "alike_prompts": 9}, []),
        ({"named_replies": 100, "same_names": 10}, []),
        ({"named_replies": 100, "same_names": 11}, ["ids-repeated"]),
        ({"named_repeats": 20, "same_names_of_prompt": 3}, ["ids-repeated"]),
        ({"named_repeats": 19, "same_names_of_prompt": 19}, []),
        ({"calling_prompts": 100, "uncalled_prompts": 10}, []),
        ({"calling_prompts": 100, "uncalled_prompts": 11}, ["fields-ignored"]),
        ({"bounded_prompts": 10, "short_answers": 2}, ["fields-ignored"]),
        ({"short_prompts": 1}, ["prompt-changed"]),
    ],
)
def test_shares_above_a_limit_are_doubts(told: dict[str, Any], expected: list[str]) -> None:
    assert codes(**told) == expected


def test_equal_answers_of_requests_that_ignore_the_end_are_expected() -> None:
    assert codes({"ignore_eos": "on"}, long_answered=40, alike_prompts=40) == []


@pytest.mark.parametrize(
    ("changed", "lengths", "expected"),
    [
        ({}, 36, ["answers-cut"]),
        ({}, 35, []),
        ({"max_tokens": 129}, 36, []),  # the prompts set limits of their own
        ({"max_tokens_from": "option"}, 36, []),
        ({"ignore_eos": "on"}, 36, []),
    ],
)
def test_answers_that_end_at_the_default_limit_are_doubted(
    changed: dict[str, Any], lengths: int, expected: list[str]
) -> None:
    """Bug: by default, each answer ended after 128 tokens, and the run had no doubt about its rates and costs."""
    about = {"max_tokens": 128, "max_tokens_from": "default", "ignore_eos": "off"} | changed
    run = remote(tokens={**TOKENS, "finish_reasons": {"length": lengths, "stop": 1}})
    assert run.done is not None
    tokens = np.full(len(run.done), 128)
    done = replace(run.done, columns={**run.done.columns, "tokens": tokens})
    found = token_counts.doubts(replace(run, done=done), about)
    assert [doubt.code for doubt in found] == expected


@pytest.mark.parametrize(
    ("asked", "names", "expected"),
    [
        (["gpt-4o"], ["gpt-4o-2024-08-06"], []),
        (["tiny"], ["/models/Tiny.gguf"], []),
        (["org/llama"], ["llama"], []),
        (["tiny", "lora"], ["tiny", "lora"], []),
        (["tiny"], [], []),
        (["tiny"], ["small"], ["other-model"]),
    ],
)
def test_a_name_that_no_request_has_is_another_model(
    asked: list[str], names: list[str], expected: list[str]
) -> None:
    assert codes({"asked_as": asked, "answers_as": names}) == expected


def times(changed: int, seen: int, again: int) -> dict[str, Any]:
    each = {"changed": changed, "seen": seen, "again": again}
    return {**{f"{name}_ns": [ns] * 20 for name, ns in each.items()}, "refused": ""}


@pytest.mark.parametrize(
    ("prompts", "expected"),
    [
        (None, []),
        ({"reason": "too short"}, []),
        (times(1000, 1000, 1000), []),
        (times(1500, 1000, 1000), []),
        (times(1600, 1000, 1600), ["prefix-cache"]),
        (times(1600, 1600, 1000), ["prefix-cache"]),
        (times(1600, 1000, 1000), ["prefix-cache"]),
        ({**times(1, 1, 1), "refused": "400: no such prompt"}, ["cached"]),
    ],
)
def test_prompts_that_are_faster_when_repeated_are_a_cache(
    prompts: Any, expected: list[str]
) -> None:
    assert codes(prompts=prompts) == expected


def test_a_cache_that_the_server_reports_is_doubted_once() -> None:
    found = doubts(prompts=times(1600, 1000, 1000), cached_answers=3)
    assert [doubt.code for doubt in found] == ["prefix-cache"]
    assert found[0].text.startswith("for 3 of 700 answers")


@pytest.mark.parametrize(
    ("differing", "repeated", "expected"),
    [(10, 100, []), (11, 100, ["answers-vary"]), (19, 19, [])],
)
def test_repeated_prompts_should_get_equal_answers(
    differing: int, repeated: int, expected: list[str]
) -> None:
    told = {"repeated_answers": repeated, "varied_answers": differing}
    assert [doubt.code for doubt in answer_signs.varied(told)] == expected


@pytest.mark.parametrize(
    ("second_ms", "gap_ms", "first_ms", "expected"),
    [
        (30, 2, 1, ["first-token-early"]),
        (30, 2, 16, []),  # the times look as if a second machine had taken over after the prompt
        (7, 2, 1, []),
        (0, 0, 0, []),
    ],
)
def test_a_second_token_much_later_than_the_first_is_a_doubt(
    second_ms: int, gap_ms: int, first_ms: int, expected: list[str]
) -> None:
    gaps = {
        "second_gap_ns": {"p50": second_ms * NS_PER_MS},
        "chunk_gap_ns": {"p50": gap_ms * NS_PER_MS},
    }
    run = remote(tokens={**TOKENS, "streams": gaps})
    assert run.done is not None
    first_ns = run.done.columns["sent_ns"] + first_ms * NS_PER_MS
    done = replace(run.done, columns={**run.done.columns, "first_token_ns": first_ns})
    found = token_counts.doubts(replace(run, done=done))
    assert [doubt.code for doubt in found] == expected


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ({}, []),
        ({"generated_tokens": 500.0}, []),
        ({"generated_tokens": 300.0}, ["tokens-doubtful"]),
        ({"generated_tokens": 300.0, "rows": 4}, []),
        # The tokens are not doubted, because only half of the run was observed.
        ({"generated_tokens": 300.0, "rows": 6}, []),
        ({"cache_hit_share": 0.2}, ["prefix-cache"]),
        ({"cache_hit_share": 0.04}, []),
    ],
)
def test_the_page_of_metrics_is_compared_with_the_replies(
    page: dict[str, Any], expected: list[str]
) -> None:
    told = {"output": 1000, "cached_answers": 0}
    servers = {"rows": 10, **page}
    assert [doubt.code for doubt in answer_signs.page(servers, told, 10.0)] == expected
