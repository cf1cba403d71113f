"""The line about tokens contains the numbers that are known, and omits unknown numbers."""

from typing import Any

import pytest

from harness.results.tokens import by_model, cancellations, probes
from harness.results.tokens.shown import shown

TIMES = {"p50": 10_000_000, "p90": 11_000_000, "p99": 20_000_000}


@pytest.mark.parametrize(
    ("tokens", "line"),
    [
        ({}, "120 tokens/s, TTFT 10.0 ms / 20.0 ms, TPOT 10.0 ms / 20.0 ms, ITL 10.0 ms / 20.0 ms"),
        ({"itl_ns": None}, "120 tokens/s, TTFT 10.0 ms / 20.0 ms, TPOT 10.0 ms / 20.0 ms"),
        ({"output_per_s": None, "tpot_ns": None, "itl_ns": None}, "not counted by the server, TTFT 10.0 ms / 20.0 ms"),
        ({"output_per_s": None, "itl_ns": None}, "some answers not counted by the server, TTFT 10.0 ms / 20.0 ms, TPOT 10.0 ms / 20.0 ms"),
    ],
)  # fmt: skip
def test_known_token_numbers_are_shown(tokens: dict[str, Any], line: str) -> None:
    known = {
        "answers": 1,
        "output_per_s": 120.0,
        "ttft_ns": TIMES,
        "tpot_ns": TIMES,
        "itl_ns": TIMES,
    }
    text = shown({"tokens": {**known, **tokens}})
    assert text is not None
    assert text.removesuffix(" (p50 / p99)") == line


def test_unknown_token_numbers_are_not_shown() -> None:
    nothing = dict.fromkeys(("output_per_s", "ttft_ns", "tpot_ns", "itl_ns"))
    assert shown({"tokens": {"answers": 1, **nothing}}) == "not counted by the server"
    assert shown({"tokens": {"answers": 0, **nothing}}) == "none: no answer was read"
    assert shown({}) is None


def test_the_share_of_the_cache_is_shown_beside_the_possible_share() -> None:
    tokens = {"answers": 1, "output_per_s": 120.0, "cached": 450, "input": 1000}
    line = "120 tokens/s, 45.0 % of the prompt tokens cached (45.2 % possible)"
    assert shown({"tokens": {**tokens, "reusable": 452}}) == line
    assert shown({"tokens": {**tokens, "reusable": None}}) == "120 tokens/s"


def test_more_cached_than_possible_names_the_size_of_the_blocks() -> None:
    """Bug: for a server with blocks of 4 tokens, the line was `23.2 % of the prompts cached (10.2 % possible)`."""
    tokens = {"answers": 1, "output_per_s": 120.0, "cached": 232, "input": 1000, "reusable": 102}
    assert shown({"tokens": {**tokens, "cache_block_tokens": 16}}) == (
        "120 tokens/s, 23.2 % of the prompt tokens cached (more than 10.2 % possible with blocks of 16 tokens: the server's blocks are "
        "probably smaller than cache_block)"
    )


def test_prompts_without_an_answer_leave_no_share_of_the_cache() -> None:
    """Bug: after a server had died, the line said that 1,614 % of the prompts could have been cached."""
    tokens = {"answers": 1, "output_per_s": 120.0, "cached": 450, "input": 1000, "reusable": 16140}
    assert shown({"tokens": tokens, "queries": {"samples_issued": 20}}) == "120 tokens/s"
    assert "possible" in str(shown({"tokens": tokens, "queries": {"samples_issued": 1}}))


def test_a_cancellation_without_streams_is_followed_by_an_answer() -> None:
    """Bug: the text was `1 requests … with 1 tokens`; without streams, the time of a whole reply was reported as the
    time to the first token.
    """
    found = {"cancelled": 1, "after_ns": 5_000_000, "begun": 1, "tokens": 1}
    result = {
        "cancellations": {**found, "next_first_token_ns": TIMES, "other_first_token_ns": TIMES}
    }
    told = "1 request after 5.00 ms with 1 token, the {} took 10.0 ms / 20.0 ms for the next request and "
    assert str(cancellations.shown(result)).startswith(told.format("answer"))
    streamed = cancellations.shown({**result, "tokens": {"ttft_ns": TIMES}})
    assert str(streamed).startswith(told.format("first token"))


def test_percentiles_of_probes_have_the_number_of_probes() -> None:
    found = {"sent": 2, "answered": 2, "failed": 0, "unanswered": 0, "alone_ns": None}
    told = "10.0 ms / 20.0 ms (p50 / p99 of 2 probes) during the load"
    assert probes.shown({"probes": {**found, "latency_ns": TIMES}}) == told


@pytest.mark.parametrize(("time", "name"), [("ttft_ns", "TTFT"), ("latency_ns", "latency")])
def test_the_slowest_model_is_shown_with_its_time(time: str, name: str) -> None:
    """Bug: `slowest adapter, 1.44 x the fastest at p90` read like a speed, and no p90 was shown."""
    models = [
        {"model": model, "requests": 9, "ttft_ns": None, time: {**TIMES, "p90": p90}}
        for model, p90 in (("adapter", 12_000_000), ("base", 8_000_000))
    ]
    found = {"slowest": "adapter", "slowest_ratio": 1.5, "compared": f"{time} p90", "fairness": 0.9}
    line = str(by_model.shown({"by_model": {**found, "models": models}}))
    told = f"; slowest adapter: {name} p90 12.0 ms, 1.50 x the p90 of the fastest (base); fairness 0.900"
    assert line.endswith(told)
