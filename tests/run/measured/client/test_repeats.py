"""Answers to equal prompts, and the names in the replies, are compared within one run."""

import numpy as np

from harness.run.measured.client.repeats import Repeats

LONG = np.arange(32, dtype=np.int32)


def test_an_answer_that_begins_differently_is_varied() -> None:
    repeats = Repeats()
    later = LONG.copy()
    # Token 7 lies beyond the part that is compared, because a different batch size may change such late tokens.
    later[7] = 0
    for answer in (LONG, later, LONG + 1):
        repeats.add([0], [answer], [""])
    repeats.add([1], [LONG + 1], [""])
    found = repeats.summary()
    assert (found["repeated_answers"], found["varied_answers"]) == (2, 1)


def test_names_are_compared_with_the_reply_before_and_of_the_prompt() -> None:
    repeats = Repeats()
    repeats.add([0, 1, 0], [LONG[:1]] * 3, ["a", "b", "a"])
    repeats.add([1, 1, 2], [LONG[:1]] * 3, ["c", "c", ""])
    found = repeats.summary()
    assert (found["named_replies"], found["same_names"]) == (4, 1)
    assert (found["named_repeats"], found["same_names_of_prompt"]) == (3, 2)


def test_equal_long_answers_to_different_prompts_are_alike() -> None:
    repeats = Repeats()
    repeats.add(range(5), [*[LONG] * 4, LONG + 1], [""] * 5)
    repeats.add([5], [LONG[:31]], [""])  # an answer of 31 tokens is too short to prove anything
    # Samples 1 and 2 share a prompt, and the prompt of sample 3 is unknown.
    hashes = {0: 7, 1: 8, 2: 8, 4: 9, 5: 10}
    assert repeats.alike(hashes) == {"long_answered": 3, "alike_prompts": 2}
