"""Replies become answers: replies of equal format are merged; if one reply is bad, all replies are handled one by one."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest

from harness.core.clock import wall_ns
from harness.loadgen.answers import AnswerRow, Ragged
from harness.models.steps.postprocess import Postprocess, not_finite
from harness.remote import BadAnswer, Refused, Reply, Usage
from harness.run.measured.client.dispatch import Delivery
from harness.run.measured.dispatch.instance import Failures
from harness.types import Array, Outputs
from harness.wire.flight import Flight

ROW = AnswerRow((2,), np.dtype("float32"))


class Remote:
    """Decodes bodies of float32 values; a body of a different length yields as many numbers as the body contains."""

    def __init__(self, named: bool = False) -> None:
        self.named = named

    def answer(self, reply: Reply, samples: int) -> Outputs:
        if reply.status != 200:
            raise Refused(reply.status, "no")
        rows = np.frombuffer(bytes(reply.body), np.float32).reshape(samples, -1)
        return {"a": rows, "b": rows + 1} if self.named else rows


class Recorder:
    """Receives completions in place of LoadGen, and rows in place of the journal."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.answers: dict[int, list[float] | None] = {}
        self.rows: dict[int, tuple[int, ...]] = {}
        self.told: list[tuple[str, list[int]]] = []
        self.begun: dict[int, int | None] = {}
        """Maps the sample's id to the id of its first token."""

    def complete(self, ids: Sequence[int], answers: Any) -> int:
        self.calls.append([*ids])
        self.answers |= {
            i: row.tolist() for i, row in zip(ids, getattr(answers, "rows", answers), strict=True)
        }
        return wall_ns()

    def complete_empty(self, ids: Sequence[int]) -> int:
        self.answers |= dict.fromkeys(ids)
        return wall_ns()

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[int | None]) -> None:
        self.told.append(("first", [*ids]))
        self.begun |= dict(zip(ids, tokens, strict=True))

    def tokens(self, counts: Sequence[int]) -> None:
        self.told.append(("tokens", [*counts]))

    def reply(self, first: int, indices: Sequence[int], failed: int, /, *values: int) -> None:
        *stamps, _first_token_ns, _answer_token_ns, _tokens, _late_tokens, _server, _cancelled = (
            values
        )
        assert stamps == sorted(stamps)
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
def test_equal_replies_are_completed_in_one_call(named: bool) -> None:
    flights = [flight(0, [0, 1]), flight(1, [2, 3, 4, 5], 2), flight(3, [6, 7])]
    taken, failures = delivered(*flights, named=named)
    assert taken.calls == [[0, 1, 2, 3]]
    assert taken.answers == {0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}
    assert taken.rows == {0: (1, 0), 1: (2, 0), 3: (1, 0)}
    assert failures.samples == 0


def test_a_call_completes_no_more_than_its_responder_holds() -> None:
    taken, _ = delivered(*[flight(i, [i, i]) for i in range(5)], most=2)
    assert taken.calls == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize("arrived_ns", [3, 0], ids=["stamped", "without the kernel's stamp"])
def test_a_reply_that_came_before_the_senders_stamp_was_sent_before(arrived_ns: int) -> None:
    """Bug: without the kernel's time stamps, an honest run was INVALID (`journal-impossible`)."""
    early = flight(0, [0, 1])
    early.sent_ns, early.arrived_ns = 9, arrived_ns
    notes = NotesStamps()
    Delivery(
        cast("Any", Remote(False)),
        Postprocess(cast("Any", lambda outputs, _: outputs), not_finite),
        cast("Any", notes),
        notes,
        ROW,
        Failures(),
        64,
    ).deliver([early])
    assert notes.sent_ns == (arrived_ns or early.read_ns)


class NotesStamps(Recorder):
    def reply(self, first: int, indices: Sequence[int], failed: int, /, *values: int) -> None:
        self.sent_ns, self.first_token_ns = values[1], values[6]


def test_one_bad_reply_among_others_fails_alone() -> None:
    broken = flight(5, [])
    broken.reply, broken.error, broken.kind = None, TimeoutError("late"), "timeout"
    flights = [
        flight(0, [0, 1]),
        flight(1, [0, 1, 2]),  # flight 1 fails, because its answer has a different shape
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


class TokenReader:
    """The reader of a plug-in whose replies contain one float per token."""

    is_exact, chunks = True, 1

    def __init__(self) -> None:
        self.usage = Usage()
        self.first_token: int | None = None

    def feed(self, piece: bytes) -> int:
        raise AssertionError

    def answer(self, reply: Reply) -> Array:
        tokens = np.frombuffer(bytes(reply.body), np.float32)
        if not len(tokens):
            raise BadAnswer("the answer has no tokens")
        self.usage = Usage(output=len(tokens))
        self.first_token = 50 + len(tokens)
        return tokens.reshape(1, -1)


class TokenRemote:
    streams = True
    reader = TokenReader


def stream(order: int, tokens: int, *, begun: bool = True) -> Flight:
    made = flight(order, [1.0] * tokens)
    made.chunks, made.first_token = ([(3, 1)], 40 + order) if begun else ([], None)
    made.reader = TokenReader()
    return made


def told(*flights: Flight, first_tokens: bool = True) -> Recorder:
    taken, row = Recorder(), AnswerRow((None,), np.dtype(np.float32))
    delivery = Delivery(
        cast("Any", TokenRemote()),
        Postprocess(lambda outputs, _: Ragged([cast("Array", outputs)[0]]), not_finite),
        taken,
        taken,
        row,
        Failures(),
        64,
        token_latencies=True,
        first_tokens=first_tokens,
    )
    begun = [flight for flight in flights if flight.chunks]
    if first_tokens and begun:
        delivery.begin(begun)
        assert begun == []
    delivery.deliver(flights)
    return taken


def test_first_tokens_are_reported_in_one_call_before_the_answers() -> None:
    taken = told(stream(0, 3), stream(1, 4))
    assert taken.told == [("first", [0, 1]), ("tokens", [3]), ("tokens", [4])]
    assert taken.begun == {0: 40, 1: 41}
    assert taken.calls == [[0], [1]]


def test_no_answer_comes_before_its_first_token() -> None:
    """If an answer came without a first token, LoadGen would read foreign memory."""
    failed = stream(1, 0, begun=False)
    cut = stream(2, 5)
    cut.reply, cut.error, cut.kind = None, ConnectionResetError(), "reset"
    taken = told(stream(0, 2, begun=False), failed, cut)
    assert [call for call in taken.told if call[0] == "first"] == [
        ("first", [2]),
        ("first", [1]),
        ("first", [0]),
    ]
    # If a first token arrives together with its whole answer, its time is also recorded.
    assert taken.begun == {0: 52, 1: None, 2: 42}
    assert taken.answers == {0: [1.0, 1.0], 1: None, 2: None}


def test_answer_of_one_token_is_reported_with_its_first_token() -> None:
    assert told(stream(0, 1)).told == [("first", [0]), ("tokens", [1])]


@pytest.mark.parametrize(
    ("made", "first_token_ns"),
    [(stream(0, 2), 3), (stream(0, 2, begun=False), 4), (stream(0, 0), 0)],
    ids=["of its chunk", "of its end", "of a failed answer"],
)
def test_the_row_of_a_stream_has_the_stamp_of_its_first_token(
    made: Flight, first_token_ns: int
) -> None:
    made.arrived_ns = 0
    notes = NotesStamps()
    Delivery(
        cast("Any", TokenRemote()),
        Postprocess(lambda outputs, _: Ragged([cast("Array", outputs)[0]]), not_finite),
        notes,
        notes,
        AnswerRow((None,), np.dtype(np.float32)),
        Failures(),
        64,
    ).deliver([made])
    assert notes.first_token_ns == first_token_ns


def test_offline_reports_no_first_token() -> None:
    assert told(stream(0, 2), first_tokens=False).told == [("tokens", [2])]
