"""Tokens after the text must have taken time, like the tokens of the text."""

import pytest

from harness.remote import Usage
from harness.run.measured.client.tails import LEAST_NS, Tails
from harness.run.measured.client.tokens import Tokens

GAP_NS = 8_000_000
TEXT, TAIL = 10, 40


def told(tail_ns: int, *, exact: bool, after_text: int = TAIL) -> tuple[int, int]:
    """(streams with a tail, those whose tail came at once) of one stream: its tail takes tail_ns."""
    tails = Tails()
    arrivals = [(number * GAP_NS, number) for number in range(1, TEXT + 1)]
    end_ns = TEXT * GAP_NS + tail_ns
    if exact:
        arrivals.append((end_ns, TEXT + after_text))
    tails.add(arrivals, after_text, TEXT + after_text, end_ns, exact=exact)
    return tails.streams, tails.at_once


@pytest.mark.parametrize(
    ("tail_ns", "exact", "expected"),
    [
        (TAIL * GAP_NS, True, (1, 0)),
        (TAIL * GAP_NS // 20, True, (1, 0)),
        (TAIL * GAP_NS // 20 - TAIL, True, (1, 1)),
        (TAIL * LEAST_NS, False, (1, 0)),
        (TAIL * LEAST_NS - 1, False, (1, 1)),
    ],
)
def test_tokens_after_the_text_take_time(
    tail_ns: int, exact: bool, expected: tuple[int, int]
) -> None:
    assert told(tail_ns, exact=exact) == expected


def test_few_tokens_after_the_text_may_come_together() -> None:
    assert told(0, exact=True, after_text=7) == (0, 0)
    assert told(0, exact=True, after_text=8) == (1, 1)


def test_text_that_arrived_with_its_tail_is_not_judged() -> None:
    tails = Tails()
    tails.add([(GAP_NS, 50)], TAIL, 50, GAP_NS, exact=True)
    assert (tails.streams, tails.at_once) == (0, 0)


def test_answers_without_a_tail_are_not_judged() -> None:
    counted = Tokens()
    counted.tail([(1, 1)], Usage(output=40), 1, exact=True)
    counted.tail([(1, 1)], Usage(output=40, after_text=39), 1, exact=True)
    assert (counted.summary()["tails"], counted.summary()["tails_at_once"]) == (1, 1)
