"""Times between tokens come from known time stamps, whatever the number of tokens in a chunk."""

from collections import Counter
from collections.abc import Sequence
from time import sleep
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.stats import percentile_ns
from harness.remote import Reply, Sent, Usage
from harness.run.measured.client import tokens as tokens_module
from harness.run.measured.client.tokens import Tokens, percentiles
from harness.types import Outputs

GAP_NS = 8_000_000


class Reader:
    """A reader that has already read a stream."""

    def __init__(self, chunks: int, exact: bool) -> None:
        self.chunks, self.is_exact = chunks, exact
        self.usage = Usage()
        self.first_token = None

    def feed(self, _piece: bytes, /) -> int:
        raise AssertionError

    def answer(self, _reply: Reply, /) -> Outputs:
        raise AssertionError


def told(per_chunk: int, chunks: int, *, exact: bool, tokens: int | None = None) -> Any:
    counted = Tokens()
    step = per_chunk if exact else 1
    stamps = [(i * GAP_NS, (i + 1) * step) for i in range(chunks)]
    total = per_chunk * chunks if tokens is None else tokens
    counted.stream(stamps, total, Reader(chunks, exact))
    return counted.summary()["streams"]


@pytest.mark.parametrize("per_chunk", [1, 2, 4, 8])
def test_the_tokens_of_a_chunk_share_its_gap(per_chunk: int) -> None:
    streams = told(per_chunk, 101, exact=True)
    assert streams["tokens_per_chunk"] == per_chunk
    assert streams["chunk_gap_ns"] == {"p50": GAP_NS, "p90": GAP_NS, "p99": GAP_NS}
    assert streams["itl_ns"] == dict.fromkeys(("p50", "p90", "p99"), GAP_NS // per_chunk)


def test_late_tokens_are_those_of_gaps_above_the_bound() -> None:
    counted = Tokens(itl_bound_ns=GAP_NS // 4)
    # The gaps per token are a half, a quarter and a fifth of GAP_NS; the further tokens in the first chunk are never
    # late.
    stamps = [(0, 3), (GAP_NS, 5), (2 * GAP_NS, 9), (3 * GAP_NS, 14)]
    assert counted.stream(stamps, 14, Reader(4, exact=True)) == 2
    assert Tokens().stream(stamps, 14, Reader(4, exact=True)) == 0


def test_the_further_tokens_of_the_first_chunk_came_after_no_time() -> None:
    counted = Tokens()
    counted.stream([(0, 60), (GAP_NS, 100)], 100, Reader(2, exact=True))
    # The stream has 59 gaps of 0 within the chunks, and 40 gaps of a fortieth of GAP_NS.
    assert counted.summary()["streams"]["itl_ns"] == {
        "p50": 0,
        "p90": GAP_NS // 40,
        "p99": GAP_NS // 40,
    }


@pytest.mark.parametrize("per_chunk", [2, 4, 8])
def test_uncounted_chunks_of_several_tokens_give_no_itl(per_chunk: int) -> None:
    streams = told(per_chunk, 100, exact=False)
    assert streams["itl_ns"] is None
    assert streams["tokens_per_chunk"] == per_chunk
    assert streams["chunk_gap_ns"]["p50"] == GAP_NS


@pytest.mark.parametrize(("tokens", "known"), [(100, True), (125, True), (126, False)])
def test_chunks_of_about_one_token_count_as_tokens(tokens: int, known: bool) -> None:
    assert (told(1, 100, exact=False, tokens=tokens)["itl_ns"] is not None) == known


def test_chunks_that_arrive_together_are_still_as_many() -> None:
    counted = Tokens()
    counted.stream([(0, 1), (GAP_NS, 5)], 5, Reader(5, exact=False))
    streams = counted.summary()["streams"]
    assert streams["tokens_per_chunk"] == 1
    assert streams["itl_ns"] == dict.fromkeys(("p50", "p90", "p99"), GAP_NS // 4)


def test_missing_token_count_gives_no_itl() -> None:
    counted = Tokens()
    counted.stream([(0, 1), (GAP_NS, 2)], None, Reader(2, exact=False))
    streams = counted.summary()["streams"]
    assert streams["itl_ns"] is None
    assert streams["tokens_per_chunk"] is None


@given(st.lists(st.tuples(st.integers(0, 10**9), st.integers(0, 5)), max_size=30))
def test_weighted_percentiles_equal_percentiles_of_repeated_values(
    pairs: list[tuple[int, int]],
) -> None:
    values = np.array([value for value, _ in pairs], np.int64)
    weights = np.array([weight for _, weight in pairs], np.int64)
    repeated = np.sort(np.repeat(values, weights))
    expected = None
    if len(repeated):
        shares = {"p50": 0.50, "p90": 0.90, "p99": 0.99}
        expected = {name: percentile_ns(repeated, share) for name, share in shares.items()}
    assert percentiles(values, weights) == expected


def test_sums_are_null_if_a_reply_lacks_a_count() -> None:
    counted = Tokens()
    counted.add(Usage(5, 3, "usage", "stop", 1), 0)
    counted.add(Usage(None, 1, "token ids", "length", None), 0)
    content = counted.summary()
    assert (content["input"], content["output"], content["cached"]) == (None, 4, None)
    assert content["one_token_answers"] == 1
    assert content["finish_reasons"] == {"stop": 1, "length": 1}
    counted.add(Usage(), 0)
    assert counted.summary()["output"] is None


def test_counts_over_many_blocks_match_those_of_single_answers() -> None:
    """Answers are counted in blocks, and the last block must not lose an answer."""
    rng = np.random.default_rng(3)
    counted, given = Tokens(), []
    for number in range(3 * tokens_module._BLOCK + 5):
        output = int(rng.integers(1, 4))
        end = ("stop", "length", "")[number // 9 % 3]
        call = {"reply_id": f"id{number % 50}", "has_call": number % 7 == 0}
        given.append((Usage(5, output, "usage", end, number % 2, signs=("x",), **call), number % 9))  # type: ignore[arg-type]
        counted.add(*given[-1], np.arange(40, dtype=np.int32) + number % 9 // 8)
    content = counted.summary()
    usages = [usage for usage, _ in given]
    assert content["answers"] == content["signs"]["x"] == len(given)
    assert (content["input"], content["cached"]) == (
        5 * len(given),
        sum(u.cached or 0 for u in usages),
    )
    assert content["output"] == sum(u.output or 0 for u in usages)
    assert content["one_token_answers"] == sum(u.output == 1 for u in usages)
    assert content["finish_reasons"] == dict(Counter(u.finish_reason for u in usages))
    assert (content["repeated_answers"], content["named_replies"]) == (
        len(given) - 9,
        len(given) - 1,
    )
    ended = [(u.output or 0, index) for u, index in given if u.finish_reason != "length"]
    assert counted._shortest == {i: min(n for n, j in ended if j == i) for i in range(9)}
    assert counted._without_call == {i for u, i in given if not u.has_call}


def test_a_count_that_is_not_a_number_is_a_contradiction() -> None:
    """A plug-in's counts are not trusted, and a wrong count must not destroy the other numbers of the run."""
    counted = Tokens()
    counted.add(Usage(5, "three", "usage"), 0)  # type: ignore[arg-type]
    counted.add(Usage(5, 3, "usage"), 0)
    (text,) = counted.summary()["contradictions"]
    assert text.startswith("a count cannot be read (unsupported operand")


def test_sums_without_an_answer_are_null_and_no_zeros() -> None:
    content = Tokens().summary()
    assert content["answers"] == 0
    assert content["input"] is content["output"] is content["cached"] is content["streams"] is None


class Prompts:
    """A combined dataset and plug-in that reports two of at most eight tokens per sample as sent."""

    def __init__(self, load_s: float = 0.0) -> None:
        self.load_s = load_s
        self.held: set[int] = set()
        self.most = 0

    def load(self, indices: Sequence[int]) -> None:
        sleep(self.load_s)
        self.held.update(indices)
        self.most = max(self.most, len(self.held))

    def unload(self, indices: Sequence[int]) -> None:
        self.held.difference_update(indices)

    def batch(self, indices: Sequence[int]) -> Any:
        assert self.held.issuperset(indices)
        return indices

    def sent(self, batch: Any) -> Sent:
        return Sent(2, 3, 8)


def compared(prompts: Prompts, samples: int = 1000) -> Any:
    counted = Tokens()
    for index in range(samples):
        counted.add(Usage(4 if index % 2 else 2, 9, "usage", "stop"), index)
    return counted.compared(cast("Any", prompts), cast("Any", prompts))


def test_prompts_are_compared_in_parts() -> None:
    """Bug: all samples of the run were loaded at once."""
    prompts = Prompts()
    assert compared(prompts) == {
        "compared_prompts": 1000,
        "changed_prompts": 500,
        "long_prompts": 500,
        "long_answers": 1000,
        **dict.fromkeys(
            (
                *("short_prompts", "short_answers", "bounded_prompts", "uncalled_prompts"),
                *("calling_prompts", "long_answered", "alike_prompts"),
            ),
            0,
        ),
    }
    assert (prompts.most, prompts.held) == (256, set())


def test_a_comparison_that_takes_too_long_covers_only_a_part(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: the watchdog ended the run as hung."""
    monkeypatch.setattr(tokens_module, "COMPARE_S", 0.2)
    content = compared(Prompts(load_s=0.3))
    assert content["compared_prompts"] == content["long_answers"] == 256
