"""Prompts on a token engine: which prompts join a batch, which leave it, and what ends an answer."""

from collections.abc import Sequence
from typing import Any

import pytest

from harness.errors import ConfigError
from harness.models.generation.engine import Answering
from harness.models.generation.prefixes import PrefixCache
from harness.models.generation.token_engine import EngineGenerator
from harness.models.manifest.schema import Generation

END = 9
ABOUT = Generation(context=12, vocabulary=10, end=(END,))


class Scripted:
    """Answers a prompt with the prompt's own tokens, one per step, and records the calls. `silent`: keys that receive
    no token.
    """

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.silent: set[int] = set()
        self._left: dict[int, list[int]] = {}

    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        self.calls.append(("begin", key, most, ignores_end))
        self._left[key] = [*prompt] * most

    def step(self) -> Sequence[tuple[int, int]]:
        assert self._left, "a step without an active answer"
        return [(key, left.pop(0)) for key, left in self._left.items() if key not in self.silent]

    def leave(self, key: int) -> None:
        self.calls.append(("leave", key))
        del self._left[key]


@pytest.fixture
def engine() -> Scripted:
    return Scripted()


def of(engine: Scripted, sequences: int = 2) -> EngineGenerator:
    return EngineGenerator(engine, ABOUT, sequences)


def finish(generator: EngineGenerator) -> None:
    while not generator.is_idle:
        generator.step()


def test_an_end_and_the_limit_finish_answers(engine: Scripted) -> None:
    generator = of(engine)
    ended, limited = Answering([1, END], 8), Answering([2, 3], 3)
    for one in (ended, limited):
        generator.add(one)
    finish(generator)
    assert (ended.tokens, ended.finish_reason) == ([1, END], "stop")
    assert (limited.tokens, limited.finish_reason) == ([2, 3, 2], "length")
    assert engine.calls == [
        ("begin", 0, 8, False),
        ("begin", 1, 3, False),
        ("leave", 0),
        ("leave", 1),
    ]


def test_an_ignored_end_does_not_finish_an_answer(engine: Scripted) -> None:
    generator = of(engine)
    one = Answering([END], 4, ignores_end=True)
    generator.add(one)
    finish(generator)
    assert (one.tokens, one.finish_reason) == ([END] * 4, "length")
    assert engine.calls[0] == ("begin", 0, 4, True)


def test_a_stop_token_of_the_request_finishes_an_answer(engine: Scripted) -> None:
    generator = of(engine)
    one = Answering([1, 2, 3], 8, stops=frozenset({2}))
    generator.add(one)
    finish(generator)
    assert (one.tokens, one.finish_reason) == ([1, 2], "stop")


def test_a_waiting_prompt_joins_when_an_answer_leaves(engine: Scripted) -> None:
    generator = of(engine, sequences=1)
    first, second = Answering([1], 2), Answering([2], 1)
    for one in (first, second):
        generator.add(one)
    assert [*generator.step()] == [first]
    assert [*generator.step()] == [first]
    assert [*generator.step()] == [second]
    assert generator.is_idle


def test_an_abandoned_answer_leaves_before_the_next_step(engine: Scripted) -> None:
    generator = of(engine)
    gone, unborn, kept = Answering([1], 8), Answering([2], 8), Answering([3], 2)
    generator.add(gone)
    generator.step()
    for one in (unborn, kept):
        generator.add(one)
    gone.is_wanted = unborn.is_wanted = False
    assert [*generator.step()] == [kept]
    assert gone.tokens == [1]
    assert not unborn.tokens
    assert ("leave", 0) in engine.calls


def test_an_answer_without_a_new_token_is_not_in_the_step(engine: Scripted) -> None:
    generator = of(engine)
    slow, fast = Answering([1], 2), Answering([2], 2)
    for one in (slow, fast):
        generator.add(one)
    engine.silent = {0}
    assert [*generator.step()] == [fast]
    engine.silent = set()
    assert [*generator.step()] == [slow, fast]
    assert fast.finish_reason == "length"
    assert not slow.finish_reason


def test_dropped_answers_leave_the_engine(engine: Scripted) -> None:
    generator = of(engine, sequences=1)
    for _ in range(2):
        generator.add(Answering([1], 8))
    generator.step()
    generator.drop_all()
    assert generator.is_idle
    assert engine.calls[-1] == ("leave", 0)
    assert [*generator.step()] == []


@pytest.mark.parametrize(
    ("prompt", "problem"),
    [
        ([], "the prompt has 0 tokens, but the model takes 1 to 11"),
        ([1] * 12, "the prompt has 12 tokens, but the model takes 1 to 11"),
        ([10], "the prompt has a token outside the vocabulary of 10 tokens"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused(
    engine: Scripted, prompt: list[int], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        of(engine).add(Answering(prompt, 4))
    assert not engine.calls


def test_an_answer_ends_with_the_context(engine: Scripted) -> None:
    generator = of(engine)
    one = Answering([1, 2], 100)
    generator.add(one)
    assert one.most == 10
    finish(generator)
    assert len(one.tokens) == 10


def test_a_least_number_of_tokens_is_refused(engine: Scripted) -> None:
    with pytest.raises(ValueError, match="min_tokens needs the logits"):
        of(engine).add(Answering([1], 4, least=2))


def test_a_cache_of_beginnings_is_refused(engine: Scripted) -> None:
    with pytest.raises(ConfigError, match="drop --prefix-cache"):
        of(engine).keep_prefixes(PrefixCache(4, 8))
