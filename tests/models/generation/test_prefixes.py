"""With the prefix cache, fewer tokens are computed, the answers stay equal, and old blocks are dropped."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from harness.errors import ConfigError
from harness.models.generation.engine import Answering, Generator
from harness.models.generation.prefixes import PrefixCache
from harness.models.manifest.lookup import load_model
from harness.types import BackendSetup, Batch, TensorSpec

MODEL = load_model("tinylm")
ABOUT: Any = MODEL.generation
SIZE = 4
SHARED = [3, 4, 5, 6, 7, 8, 9, 10]


@pytest.fixture(scope="module")
def step() -> Any:
    pytest.importorskip("onnxruntime")
    from harness.backends.ort import OrtBackend

    path = MODEL.path(("onnx",))
    with OrtBackend(BackendSetup(model=path, model_name="tinylm")) as backend:
        yield backend


class Counting:
    """Counts the tokens that the model computes."""

    def __init__(self, step: Any, cache: PrefixCache | None, sequences: int = 4) -> None:
        self._step, self.computed = step, 0
        self.generator = Generator(self._infer, step.signature(), ABOUT, sequences)
        if cache is not None:
            self.generator.keep_prefixes(cache)

    def _infer(self, batch: Batch) -> Any:
        self.computed += batch.inputs["input_ids"].size
        return self._step.infer(batch)

    def answer(self, *prompts: Sequence[int], most: int = 6) -> list[Answering]:
        asked = [Answering(list(prompt), most, ignores_end=True) for prompt in prompts]
        for one in asked:
            self.generator.add(one)
        while not self.generator.is_idle:
            self.generator.step()
        return asked


def prompts(count: int, own: int = 5) -> list[list[int]]:
    random = np.random.default_rng(1)
    return [[*SHARED, *random.integers(3, 13, own).tolist()] for _ in range(count)]


def test_a_known_beginning_is_not_computed_and_answers_are_equal(step: Any) -> None:
    plain, cached = Counting(step, None, 1), Counting(step, PrefixCache(SIZE, 100), 1)
    for prompt in prompts(6):
        (right,), (found,) = plain.answer(prompt), cached.answer(prompt)
        assert found.tokens == right.tokens
    assert plain.computed - cached.computed == 5 * len(SHARED)
    cache = cached.generator.prefixes
    assert cache is not None
    assert (cache.hit_tokens, cache.queried_tokens) == (5 * len(SHARED), 6 * 13)


def test_prompts_of_one_step_wait_for_a_common_beginning(step: Any) -> None:
    many = prompts(9)
    plain, cached = Counting(step, None), Counting(step, PrefixCache(SIZE, 100))
    right, found = plain.answer(*many), cached.answer(*many)
    assert [one.tokens for one in found] == [one.tokens for one in right]
    assert [one.cached for one in found] == [0, *[len(SHARED)] * 8]


def test_beginnings_of_different_lengths_share_a_step(step: Any) -> None:
    long = [*SHARED, 11, 12, 3, 4, 5, 6, 7, 8]
    many = [
        long,
        [*long, 9, 9],
        [*SHARED[:4], 12, 12, 12],
        [12, 11, 10, 9, 8],
        [*long[:12], 3, 3, 3],
    ]
    plain, cached = Counting(step, None), Counting(step, PrefixCache(SIZE, 100))
    cached.answer(long)
    right, found = plain.answer(*many), cached.answer(*many)
    assert [one.tokens for one in found] == [one.tokens for one in right]
    assert [one.cached for one in found] == [12, 16, 4, 0, 12]


def test_an_answer_is_a_beginning_of_the_next_prompt(step: Any) -> None:
    cached = Counting(step, PrefixCache(SIZE, 100))
    (first,) = cached.answer(SHARED, most=9)
    (second,) = cached.answer([*SHARED, *first.tokens, 5])
    # The cache lacks the last token of the first answer, because the model never received that token as input.
    assert second.cached == (len(SHARED) + 8) // SIZE * SIZE
    assert second.tokens == Counting(step, None).answer(second.prompt)[0].tokens


def test_a_full_cache_drops_the_end_of_a_beginning_first() -> None:
    cache = PrefixCache(2, 3)
    nothing: Any = lambda _begin, _end: []  # noqa: E731
    cache.put([1, 2, 3, 4, 5, 6], nothing)
    cache.put([7, 8], nothing)
    assert len(cache) == 3
    assert len(cache.known([1, 2, 3, 4, 5, 6, 0])) == 2
    cache.take([1, 2, 0])
    cache.put([9, 9], nothing)
    assert len(cache.known([1, 2, 3, 4, 0])) == 1
    cache.clear()
    assert cache.known([1, 2, 0]) == []


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    cache = PrefixCache(2, 9)
    cache.put([1, 2, 3, 4], lambda _begin, _end: [])
    assert len(cache.take([1, 2, 3, 4])) == 1
    assert len(cache.take([1, 2, 3, 4, 5])) == 2
    assert cache.take([2, 3, 4]) == []


def test_a_model_without_positions_keeps_no_beginnings() -> None:
    specs = (
        TensorSpec("input_ids", "int64", ("batch", "new")),
        TensorSpec("past_key_values.0.key", "float32", ("batch", 2, "past", 4)),
    )

    def never(_batch: Batch) -> Any:
        raise AssertionError

    generator = Generator(never, specs, ABOUT, 2)
    with pytest.raises(
        ConfigError, match="needs a model with the inputs attention_mask and position_ids"
    ):
        generator.keep_prefixes(PrefixCache(4, 10))
