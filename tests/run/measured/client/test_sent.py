"""Tests the digest over all sent bodies in order, and the number of tokens that a prefix cache could have found."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.remote import Request, Sent
from harness.run.measured.client.sent import NOTHING, summary
from harness.types import Batch


class Data:
    """A dataset of prompts, as token ids or as texts."""

    live_history = False

    def __init__(self, *prompts: Any) -> None:
        self._rows = [json.dumps({"prompt": prompt}).encode() for prompt in prompts]

    def load(self, indices: Sequence[int]) -> None: ...

    def unload(self, indices: Sequence[int]) -> None: ...

    def continue_with(self, index: int, answers: Mapping[int, bytes]) -> None: ...

    def batch(self, indices: Sequence[int]) -> Batch:
        (index,) = indices
        return Batch(1, {"request": np.array([self._rows[index]], object)})


class Remote:
    def __init__(self, block_tokens: int = 2) -> None:
        self._block_tokens = block_tokens

    def request(self, batch: Batch) -> Request:
        return Request("/", (), (b"head", batch.inputs["request"][0]))

    def sent(self, batch: Batch) -> Sent:
        prompt = json.loads(batch.inputs["request"][0])["prompt"]
        ids = prompt if isinstance(prompt, list) else None
        return Sent(len(prompt), 99, None, ids, self._block_tokens)


def found(data: Any, issued: Sequence[int], in_order: Sequence[int] | None = None) -> Any:
    remote: Any = Remote()
    return summary(remote, data, issued, in_order)


def test_earlier_prompts_give_whole_blocks_but_never_the_last_token() -> None:
    data = Data([1, 2, 3, 4, 5], [1, 2, 3, 9], [1, 2, 3, 4], [7, 1, 2])
    # Reusable tokens: none of the first sample 0; [1, 2] of sample 1; [1, 2] of sample 2, because 4 must be computed;
    # none of sample 3; and four of five tokens of the second sample 0.
    assert found(data, [0, 1, 2, 3, 0])["reusable"] == 2 + 2 + 0 + 4
    assert found(data, [0, 1, 2, 3, 0])["block_tokens"] == 2


def test_equal_tokens_after_different_beginnings_are_no_hit() -> None:
    assert found(Data([1, 1, 5, 5, 0], [2, 2, 5, 5, 0]), [0, 1])["reusable"] == 0


def test_the_digest_depends_on_bytes_and_order_alone() -> None:
    data = Data([1, 2], [3, 4], [5])
    one, other = found(data, [0, 1, 2]), found(data, [2, 1, 0])
    assert one["bodies_sha256"] != other["bodies_sha256"]
    assert found(data, [2, 0, 1], [0, 1, 2])["bodies_sha256"] == one["bodies_sha256"]
    assert found(Data([1, 2], [3, 4], [6]), [0, 1, 2])["bodies_sha256"] != one["bodies_sha256"]
    assert found(data, [0, 1, 2])["bodies_sha256"] == one["bodies_sha256"]


def test_texts_have_a_digest_but_no_known_tokens() -> None:
    told = found(Data("a", "b"), [0, 1])
    assert len(told["bodies_sha256"]) == 64
    assert (told["reusable"], told["block_tokens"]) == (None, None)


def test_a_live_history_and_a_failing_dataset_have_no_digest() -> None:
    data = Data([1, 2])
    data.live_history = True
    assert found(data, [0]) == NOTHING
    assert found(Data([1, 2]), [0, 7]) == NOTHING
