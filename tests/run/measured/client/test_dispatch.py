"""Replies become answers: merged where they are alike, one by one where one of them is bad."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from harness.core.clock import wall_ns
from harness.loadgen.answers import AnswerRow
from harness.models.steps.postprocess import Postprocess, not_finite
from harness.remote import Refused, Reply
from harness.run.measured.client.dispatch import Delivery
from harness.run.measured.dispatch.instance import Failures
from harness.types import Outputs
from harness.wire.flights import Flight

ROW = AnswerRow((2,), np.dtype("float32"))


class Remote:
    """Decodes bodies of float32; a body of another length is as many numbers as it holds."""

    def __init__(self, named: bool = False) -> None:
        self.named = named

    def answer(self, reply: Reply, samples: int) -> Outputs:
        if reply.status != 200:
            raise Refused(reply.status, "no")
        rows = np.frombuffer(bytes(reply.body), np.float32).reshape(samples, -1)
        return {"a": rows, "b": rows + 1} if self.named else rows


class Recorder:
    """Takes completions as LoadGen would, and rows as the journal would."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.answers: dict[int, list[float] | None] = {}
        self.rows: dict[int, tuple[int, ...]] = {}

    def complete(self, ids: Sequence[int], answers: Any) -> int:
        self.calls.append([*ids])
        self.answers |= {i: row.tolist() for i, row in zip(ids, answers, strict=True)}
        return wall_ns()

    def complete_empty(self, ids: Sequence[int]) -> int:
        self.answers |= dict.fromkeys(ids)
        return wall_ns()

    def reply(
        self, first: int, indices: Sequence[int], failed: int, /, *stamps: int, **_tokens: int
    ) -> None:
        assert [*stamps] == sorted(stamps)
        self.rows[first] = (len(indices), failed)


def flight(order: int, values: Sequence[float], samples: int = 1, status: int = 200) -> Flight:
    made = Flight([*range(order, order + samples)], [7] * samples, order)
    made.taken_ns, made.sent_ns, made.arrived_ns, made.read_ns = 1, 2, 3, 4
    made.reply = Reply(status, b"", memoryview(np.array(values, np.float32).tobytes()))
    return made


def delivered(*flights: Flight, named: bool = False, most: int = 64) -> tuple[Recorder, Failures]:
    taken, failures = Recorder(), Failures()
    pick = (lambda outputs, _: outputs["b"] - 1) if named else (lambda outputs, _: outputs)
    answers = Postprocess(pick, not_finite)
    Delivery(cast("Any", Remote(named)), answers, taken, taken, ROW, failures, most).deliver(
        flights
    )
    return taken, failures


@pytest.mark.parametrize("named", [False, True])
def test_replies_that_are_alike_are_completed_in_one_call(named: bool) -> None:
    flights = [flight(0, [0, 1]), flight(1, [2, 3, 4, 5], 2), flight(3, [6, 7])]
    taken, failures = delivered(*flights, named=named)
    assert taken.calls == [[0, 1, 2, 3]]
    assert taken.answers == {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}
    assert taken.rows == {0: (1, 0), 1: (2, 0), 3: (1, 0)}
    assert failures.samples == 0


def test_a_call_completes_no_more_than_its_responder_holds() -> None:
    taken, _ = delivered(*[flight(i, [i, i]) for i in range(5)], most=2)
    assert taken.calls == [[0, 1], [2, 3], [4]]


def test_one_bad_reply_among_others_fails_alone() -> None:
    broken = flight(5, [])
    broken.reply, broken.error, broken.kind = None, TimeoutError("late"), "timeout"
    flights = [
        flight(0, [0, 1]),
        flight(1, [0, 1, 2]),  # another shape
        flight(2, [float("nan"), 1]),
        flight(3, [0], status=503),
        flight(4, [4, 4]),
        broken,
    ]
    taken, failures = delivered(*flights)
    assert {i: a for i, a in taken.answers.items() if i in (0, 1, 3, 4, 5)} == {
        0: [0, 1],
        1: None,
        3: None,
        4: [4, 4],
        5: None,
    }
    assert {first: failed for first, (_, failed) in taken.rows.items()} == {
        0: 0,
        4: 0,
        **dict.fromkeys((1, 2, 3, 5), 1),
    }
    assert failures.kinds == {"bad-answer": 2, "refused": 1, "timeout": 1}
    assert failures.samples == 4
