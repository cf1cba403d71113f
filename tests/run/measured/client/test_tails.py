"""Tokens that add no text must have taken time, as the tokens of the text did."""

import pytest

from harness.remote import Usage
from harness.run.measured.client.tails import LEAST_NS, Tails
from harness.run.measured.client.tokens import Tokens

GAP_NS = 8_000_000
TEXT, TAIL = 10, 40


def told(tail_ns: int, *, exact: bool, silent: int = TAIL, more: bool = False) -> tuple[int, int]:
    """Returns two counts for one stream whose tail takes tail_ns: streams whose tail adds no text, and streams whose
    tail came at once.

    more: whether further text follows the tail.
    """
    tails = Tails()
    texts_at = [*range(1, TEXT + 1)]
    arrivals = [(number * GAP_NS, number) for number in texts_at]
    end_ns = TEXT * GAP_NS + tail_ns
    if exact:
        arrivals.append((end_ns, TEXT + silent))
    if more:
        arrivals.append((end_ns + GAP_NS, TEXT + silent + 1))
        texts_at.append(TEXT + silent + 1)
    usage = Usage(output=TEXT + silent + more, silent=silent, texts_at=texts_at if exact else ())
    tails.add(arrivals, usage, end_ns, exact=exact)
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
def test_tokens_without_text_take_time(
    tail_ns: int, exact: bool, expected: tuple[int, int]
) -> None:
    assert told(tail_ns, exact=exact) == expected
    if exact:
        assert told(tail_ns, exact=True, more=True) == expected


def test_few_tokens_without_text_may_come_together() -> None:
    assert told(0, exact=True, silent=7) == (0, 0)
    assert told(0, exact=True, silent=8) == (1, 1)


def test_tokens_that_arrived_with_a_text_are_not_judged() -> None:
    tails = Tails()
    usage = Usage(output=60, silent=TAIL, texts_at=[1, 20])
    tails.add([(GAP_NS, 1), (2 * GAP_NS, 60)], usage, 2 * GAP_NS, exact=True)
    assert (tails.streams, tails.at_once) == (0, 0)


def test_answers_whose_tokens_all_have_text_are_not_judged() -> None:
    counted = Tokens()
    counted.tail([(1, 1)], Usage(output=40), 1, exact=True)
    counted.tail([(1, 1)], Usage(output=40, silent=39), 1, exact=False)
    assert (counted.summary()["tails"], counted.summary()["tails_at_once"]) == (1, 1)
