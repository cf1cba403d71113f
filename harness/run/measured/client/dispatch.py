"""Answers queries through a server, with many requests in flight.

The direct dispatcher (Server, Offline) sends on LoadGen's thread. A second thread receives the replies. Replies that
arrived together are completed in one call. In a closed loop, the second thread also issues the next queries. The inline
dispatcher (streams) sends and receives on LoadGen's thread, which saves a thread switch.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Protocol, cast

import numpy as np

from harness.core.clock import wall_ns
from harness.core.units import NS_PER_MS
from harness.loadgen.answers import AnswerRow, Answers
from harness.models.steps.postprocess import NOT_FINITE, Postprocess
from harness.remote import BadAnswer, CutOff, HasReader, Refused, Remote, StreamReader
from harness.run.measured.client.server_times import Heads
from harness.run.measured.client.tokens import Tokens
from harness.run.measured.dispatch.instance import Failures, Responder
from harness.run.measured.dispatch.threads import WORKER
from harness.types import Array, Outputs, show_shape
from harness.wire.cancelling import CANCELLED
from harness.wire.flight import Flight
from harness.wire.transport import Transport

MERGED_SAMPLES = 64
MERGED_BYTES = 4 * 2**20
"""One LoadGen call completes at most this many bytes of answers."""

_POLL_S = 0.1
_STALE_NS = 50 * NS_PER_MS


def merged_samples(max_batch: int, row: AnswerRow) -> int:
    """Returns the maximum number of samples that one call completes."""
    if None in row.shape:
        return max_batch
    each_bytes = row.dtype.itemsize * int(np.prod(row.shape))  # type: ignore[arg-type]
    return max(max_batch, min(MERGED_SAMPLES, MERGED_BYTES // max(1, each_bytes)))


def stream_reader(remote: Remote) -> Callable[[], StreamReader] | None:
    """Returns a function that makes readers of streamed replies; None if replies are not streamed."""
    if not isinstance(remote, HasReader) or not remote.streams:
        return None
    return cast("Callable[[], StreamReader]", remote.reader)


class Issued(Protocol):
    """Stores the samples of a LoadGen callback in the journal, as Issuer does."""

    def issued(self, samples: int, entry_ns: int, /) -> int: ...


class Rows(Protocol):
    """Writes a reply's row to the journal, as RemoteWriter does."""

    def reply(self, first: int, indices: Sequence[int], failed: int, /, *values: int) -> None: ...


class TokenResponder(Responder, Protocol):
    """A Responder that can also report tokens to LoadGen."""

    def first_tokens(self, ids: Sequence[int], tokens: Sequence[int | None], /) -> None: ...

    def tokens(self, counts: Sequence[int], /) -> None: ...


class Delivery:
    """Decodes replies, completes their samples and writes their rows. Only one thread may call the methods.

    Every sample is answered, even if its request failed, because LoadGen would wait forever for a lost sample.
    """

    def __init__(
        self,
        remote: Remote,
        postprocess: Postprocess,
        responder: TokenResponder,
        rows: Rows,
        row: AnswerRow,
        failures: Failures,
        most: int,
        heads: Heads | None = None,
        *,
        token_latencies: bool = False,
        first_tokens: bool = False,
        itl_bound_ns: int | None = None,
    ) -> None:
        """most: maximum number of samples that `responder` completes in one call. heads: stores the reply heads.

        token_latencies: whether LoadGen needs the number of tokens of each answer. first_tokens: whether LoadGen also
        needs each first token. itl_bound_ns: SLO bound on the time between tokens; None without such an SLO.
        """
        self._decode = None if isinstance(remote, HasReader) else remote.answer
        self._reader = remote.reader if isinstance(remote, HasReader) else None
        self._itl_bound_ns = itl_bound_ns
        self.tokens = Tokens(itl_bound_ns) if self._reader is not None else None
        """Token counts of the answers so far; None if replies report no tokens."""
        self._postprocess, self._not_finite = postprocess.answers, postprocess.not_finite
        self._responder = responder
        self._write = rows.reply
        self._row = row
        self._row_shape, self._row_dtype = row.shape, row.dtype
        self._ragged = None in row.shape
        self._failures = failures
        self._most = most
        self._keep = heads.append if heads is not None else None
        self._counts_tokens = token_latencies
        self.first_tokens = first_tokens

    def count_anew(self) -> Tokens | None:
        """Restarts the token counts, and returns the new counts."""
        self.tokens = Tokens(self._itl_bound_ns) if self._reader is not None else None
        return self.tokens

    def begin(self, begun: list[Flight]) -> None:
        """Reports all first tokens of a turn to LoadGen in one call, before the turn's answers. Empties `begun`."""
        self._responder.first_tokens(
            [flight.ids[0] for flight in begun], [flight.first_token for flight in begun]
        )
        begun.clear()

    def deliver(self, done: Sequence[Flight]) -> None:
        """Completes these flights and writes their rows."""
        decode, keep, most = self._decode, self._keep, self._most
        decoded: list[tuple[Flight, Outputs]] = []
        count = 0
        for flight in done:
            reply, samples = flight.reply, len(flight.ids)
            if reply is None:
                if flight.kind == CANCELLED:
                    self._cancelled(flight)
                else:
                    self._fail(flight, flight.error or RuntimeError(), flight.kind)
                continue
            try:
                outputs = decode(reply, samples) if decode else self._read(flight)
            except BaseException as e:  # noqa: BLE001 - a failed request is counted and makes the run INVALID
                self._fail(flight, e, _kind(e))
                continue
            if keep is not None:
                keep(reply.head)
            if count + samples > most:
                self._answer(decoded)
                decoded, count = [], 0
            decoded.append((flight, outputs))
            count += samples
        if decoded:
            self._answer(decoded)

    def _read(self, flight: Flight) -> Outputs:
        """Decodes a reply with a plug-in that reports tokens. Returns the answer and stores the tokens."""
        assert self._reader is not None
        assert self.tokens is not None
        assert flight.reply is not None
        reader = flight.reader or self._reader()
        outputs = reader.answer(flight.reply)
        self.tokens.add(reader.usage, flight.indices[0], _row_of(outputs))
        flight.tokens, flight.first_token = reader.usage.output or 0, reader.first_token
        if flight.reader is not None:
            usage, exact = reader.usage, flight.reader.is_exact
            flight.late_tokens = self.tokens.stream(flight.chunks, usage.output, flight.reader)
            self.tokens.tail(flight.chunks, usage, flight.arrived_ns, exact=exact)
        return outputs

    def _answer(self, decoded: Sequence[tuple[Flight, Outputs]]) -> None:
        """Postprocesses and completes several replies as one batch, or one by one if the answers differ in shape or
        type.
        """
        if len(decoded) == 1:
            self._answer_one(*decoded[0])
            return
        indices = [index for flight, _ in decoded for index in flight.indices]
        try:
            outputs = _merged([outputs for _, outputs in decoded])
            if outputs is not None and not self._ragged:
                answers = self._postprocess(outputs, indices)
                if self._is_right(answers, len(indices)) and not self._not_finite(outputs, answers):
                    ids = [sample_id for flight, _ in decoded for sample_id in flight.ids]
                    if self._counts_tokens:
                        self._tell([flight for flight, _ in decoded])
                    decoded_ns = wall_ns()
                    completed_ns = self._responder.complete(ids, answers)
                    for flight, _ in decoded:
                        self._note(flight, 0, decoded_ns, completed_ns)
                    return
        except BaseException:  # noqa: BLE001, S110 - the faulty reply raises the error again below
            pass
        for flight, one in decoded:
            self._answer_one(flight, one)

    def _answer_one(self, flight: Flight, outputs: Outputs) -> None:
        samples = len(flight.ids)
        try:
            answers = self._postprocess(outputs, flight.indices)
            if not self._is_right(answers, samples):
                row = self._row
                raise BadAnswer(
                    f"the server's answers are {answers.dtype} of shape {show_shape(answers.shape)}, "
                    f"but should be {row.dtype} of shape {show_shape((samples, *row.shape))}"
                )
            failed = int(self._not_finite(outputs, answers))
        except BaseException as e:  # noqa: BLE001 - as in `deliver`
            self._fail(flight, e, _kind(e))
            return
        if failed:
            self._failures.add(ValueError(NOT_FINITE), samples, "bad-answer")
        if self._counts_tokens:
            self._tell([flight])
        decoded_ns = wall_ns()
        completed_ns = self._responder.complete(flight.ids, answers)
        self._note(flight, failed, decoded_ns, completed_ns)

    def _tell(self, flights: Sequence[Flight]) -> None:
        """Reports the token counts to LoadGen. First reports the first token of each answer that has shown no token,
        because LoadGen refuses an answer before its first token.
        """
        if self.first_tokens:
            late = [flight for flight in flights if not flight.chunks]
            if late:
                self.begin(late)
        self._responder.tokens([flight.tokens for flight in flights])

    def _is_right(self, answers: Answers, samples: int) -> bool:
        return answers.shape == (samples, *self._row_shape) and answers.dtype == self._row_dtype

    def _fail(self, flight: Flight, error: BaseException, kind: str) -> None:
        self._failures.add(error, len(flight.ids), kind)
        self._end_empty(flight, failed=1)

    def _cancelled(self, flight: Flight) -> None:
        """Completes a flight that the client cancelled. The answer is empty, but the tokens that have arrived are
        counted.
        """
        if flight.chunks:
            flight.tokens = flight.chunks[-1][1]
        else:
            flight.reader = None
        self._end_empty(flight, cancelled=1)

    def _end_empty(self, flight: Flight, failed: int = 0, cancelled: int = 0) -> None:
        if self._counts_tokens:
            self._tell([flight])
        decoded_ns = wall_ns()
        completed_ns = self._responder.complete_empty(flight.ids)
        flight.read_ns = flight.read_ns or decoded_ns
        flight.sent_ns = flight.sent_ns or flight.read_ns
        if not flight.arrived_ns:  # nothing arrived, so all the time counts as server time
            flight.arrived_ns = flight.read_ns
        self._note(flight, failed, decoded_ns, completed_ns, cancelled)

    def _note(
        self,
        flight: Flight,
        failed: int,
        decoded_ns: int,
        completed_ns: int,
        cancelled: int = 0,
    ) -> None:
        taken_ns, sent_ns, arrived_ns = flight.taken_ns, flight.sent_ns, flight.arrived_ns
        seen_ns = arrived_ns or flight.read_ns
        if flight.chunks:
            seen_ns = flight.chunks[0][0]
        if seen_ns < sent_ns:  # noqa: PLR1730 - min() takes three times as long
            # The sending thread was interrupted before it stamped the request, so the stamp is later than the reply.
            sent_ns = seen_ns
        self._write(
            flight.first,
            flight.indices,
            failed,
            taken_ns,
            sent_ns if sent_ns > taken_ns else taken_ns,  # noqa: FURB136 - max() takes three times as long
            arrived_ns,
            flight.read_ns,
            decoded_ns,
            completed_ns,
            # If a stream shows no token, the end of the answer counts as the first token. 0 means that the reply was
            # not a stream.
            seen_ns if flight.reader is not None and not failed else 0,
            0 if failed else flight.answer_ns,
            flight.tokens,
            flight.late_tokens,
            flight.server,
            cancelled,
        )


def _row_of(outputs: Outputs) -> Array:
    """Returns the numbers of the single sample; an empty array if the output contains objects instead of numbers."""
    row = outputs[0] if type(outputs) is list else None
    if isinstance(row, np.ndarray) and row.ndim == 1 and row.dtype.kind != "O":
        return row
    rows = next(iter(outputs.values())) if isinstance(outputs, Mapping) else outputs
    row = np.asarray(rows[0]).reshape(-1)
    return row if row.dtype.kind != "O" else row[:0]


def _merged(many: Sequence[Outputs]) -> Outputs | None:
    """Returns the merged outputs of several replies as one batch; None if their types differ or an output is missing.
    Raises ValueError if their shapes differ, except in the first axis.
    """
    first = many[0]
    if isinstance(first, np.ndarray):
        return _joined(many)
    if not isinstance(first, Mapping):
        return None
    merged = {}
    for name in first:
        rows = _joined([o.get(name) for o in many if isinstance(o, Mapping)])
        if rows is None or len(rows) < len(many):
            return None
        merged[name] = rows
    return merged


def _joined(many: Sequence[object]) -> Array | None:
    """Concatenates the arrays along the first axis; returns None if an element is not an array or the dtypes differ.
    Raises ValueError if the shapes differ in any other axis.
    """
    arrays = [one for one in many if isinstance(one, np.ndarray)]
    if len(arrays) < len(many) or len({a.dtype for a in arrays}) > 1:
        return None
    return np.concatenate(arrays)


def _kind(error: BaseException) -> str:
    if isinstance(error, Refused):
        return "refused"
    return "cut-off" if isinstance(error, CutOff) else "bad-answer"


def _requests(
    ids: list[int], indices: list[int], first: int, most: int, sharers: int = 0
) -> Iterable[Flight]:
    """Returns the requests of one callback. first: position of the first sample in issue order. most: maximum number of
    samples per request.

    sharers: number of instances that share the last samples evenly, so that all instances finish together; 0 if the
    last samples are not shared.
    """
    count = len(ids)
    if count <= most:
        return (Flight(ids, indices, first),)
    whole, size = whole_batches(count, most, sharers) if sharers else (count, most)
    spans = [range(s, s + most) for s in range(0, whole, most)]
    spans += [range(s, s + size) for s in range(whole, count, size)]
    return (
        Flight(ids[s.start : s.stop], indices[s.start : s.stop], first + s.start) for s in spans
    )


def whole_batches(count: int, most: int, sharers: int) -> tuple[int, int]:
    """Returns the number of samples to send in batches of `most`, and the batch size that divides the remaining samples
    evenly.
    """
    whole = max(0, count - sharers * most) // most * most
    rest = count - whole
    rounds = -(-rest // (sharers * most))
    return whole, max(1, -(-rest // (sharers * rounds)))


class DirectDispatcher:
    """Sends each request immediately on the issuing thread. A separate receiving thread does everything else."""

    def __init__(
        self, flights: Transport, delivery: Delivery, max_batch: int, issuer: Issued
    ) -> None:
        self._flights = flights
        self._deliver, self._begin = delivery.deliver, delivery.begin
        flights.begun = [] if delivery.first_tokens else None
        self._max_batch = max_batch
        self.sharers = 0
        """Number of instances that share the last samples of a query evenly; 0 if the number is unknown."""
        self._issued = issuer.issued
        self.follow: Callable[[], None] | None = None
        """The receiving thread calls this function after each turn."""
        self._stopped = False
        self.busy_shares: list[float] = []
        """For each second, the share of time in which the receiving thread was busy."""
        self._thread = threading.Thread(target=self._receive, name=f"{WORKER}0", daemon=True)
        self._thread.start()

    def issue(self, ids: list[int], indices: list[int]) -> None:
        first = self._issued(len(ids), wall_ns())
        submit = self._flights.submit
        for flight in _requests(ids, indices, first, self._max_batch, self.sharers):
            submit(flight)

    def _receive(self) -> None:
        turn, deliver, begun = self._flights.turn, self._deliver, self._flights.begun
        begin_s, waited_s = monotonic(), 0.0
        while not self._stopped:
            done = turn(_POLL_S)
            if begun:
                self._begin(begun)
            if done:
                deliver(done)
            if self.follow is not None:
                self.follow()
            waited_s += self._flights.waited_s
            took_s = monotonic() - begin_s
            if took_s >= 1:
                self.busy_shares.append(1 - min(1.0, waited_s / took_s))
                begin_s, waited_s = begin_s + took_s, 0.0

    def wait(self, timeout_s: float) -> None:
        """Lets the receiving thread run for at most `timeout_s`."""
        self._thread.join(timeout_s)

    def wake(self) -> None:
        """Wakes the receiving thread."""
        self._flights.wake()

    def stop(self) -> None:
        self._stopped = True
        self.wake()
        self._thread.join()


class InlineRemoteDispatcher:
    """Sends the requests of one query and waits for all replies within the callback."""

    busy_shares: Sequence[float] = ()

    def __init__(
        self, flights: Transport, delivery: Delivery, max_batch: int, issuer: Issued
    ) -> None:
        self._flights = flights
        self._deliver, self._begin = delivery.deliver, delivery.begin
        flights.begun = [] if delivery.first_tokens else None
        self._max_batch = max_batch
        self._issued = issuer.issued
        self._looked_ns = 0

    def issue(self, ids: list[int], indices: list[int]) -> None:
        flights, pending = self._flights, 0
        entry_ns = wall_ns()
        first = self._issued(len(ids), entry_ns)
        if entry_ns - self._looked_ns > _STALE_NS:
            # This turn replaces connections that the server has closed since the last query.
            flights.turn(0)
        for flight in _requests(ids, indices, first, self._max_batch):
            flights.submit(flight)
            pending += 1
        while pending:
            done = flights.turn(_POLL_S)
            pending -= len(done)
            if flights.begun:
                self._begin(flights.begun)
            self._deliver(done)
        self._looked_ns = wall_ns()

    def stop(self) -> None:
        """Does nothing, because this dispatcher has no thread."""
