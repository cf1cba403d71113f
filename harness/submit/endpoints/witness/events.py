"""Reads each sample's times and token counts from the client's events.jsonl, in the order of issue."""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from harness.core.files import reading
from harness.errors import ConfigError
from harness.submit.endpoints.witness.answers import Answer, Part, read_answer

Count = Callable[[Sequence[Part]], list[int]]

BATCH = 2048
"""Tokens are counted in batches of this many answers."""

_LONGEST_LINE = 64 << 20


@dataclass(slots=True)
class Sample:
    """A request, whose times come from the client's monotonic clock."""

    uuid: str
    issued_ns: int
    first_ns: int | None = None
    """Arrival time of the first chunk that contained text."""
    last_ns: int | None = None
    """Arrival time of the last chunk; None if the client recorded only the first chunk."""
    complete_ns: int | None = None
    tokens: int | None = None
    """Number of tokens in the whole answer; None if the tokens were not counted or the answer is empty."""
    rest_tokens: int | None = None
    """Number of tokens after the first chunk; None if they were not counted."""
    finish_reason: str = ""
    failed: bool = False
    is_tracked: bool = True
    """Whether the client issued the request during the performance tracking."""
    prompt: int = 0
    """Digest of the sent data."""
    answer: int = 0
    """Digest of the answer's text without leading and trailing white space; 0 for a tracked sample."""

    @property
    def tpot_ns(self) -> float | None:
        """Returns the client's time per token after the first chunk; None if no tokens follow the first chunk."""
        if self.first_ns is None or self.complete_ns is None or not self.rest_tokens:
            return None
        return (self.complete_ns - self.first_ns) / self.rest_tokens

    @property
    def chunk_tpot_ns(self) -> float | None:
        """Returns the time per token from the first to the last chunk. The same process stamped both chunks."""
        if self.first_ns is None or self.last_ns is None or not self.rest_tokens:
            return None
        return (self.last_ns - self.first_ns) / self.rest_tokens


@dataclass(slots=True)
class Events:
    samples: list[Sample] = field(default_factory=list)
    """Tracked samples in the order of issue."""
    others: list[Sample] = field(default_factory=list)
    """Requests for warm-up and accuracy, which the client sent outside the performance tracking."""
    marks: Counter[str] = field(default_factory=Counter)
    """Number of session events per type."""
    began_ns: int | None = None
    ended_ns: int | None = None
    """`began_ns`, `ended_ns`: times of the session's first and last event."""
    repeated: int = 0
    """Number of requests that were issued twice or completed twice."""
    start_ns: int | None = None
    """Start of the performance tracking."""
    stop_ns: int | None = None
    other_tokens: int = 0
    """Number of tokens in the answers to requests for warm-up and accuracy, outside the performance tracking."""
    other_answers: int = 0
    warm_up_issued: int = 0
    """Number of requests issued before the performance tracking started."""
    warm_up_completed: int = 0
    warm_up_first_ns: int | None = None
    structured: int = 0
    """Number of answers that contain reasoning or tool calls. Their tokens are counted with the chat template."""
    errors: list[str] = field(default_factory=list)
    """Texts from the client's error events."""
    uncounted: str = ""
    """Reason why tokens were not counted; '' if they were counted."""

    @property
    def completed(self) -> list[Sample]:
        return [s for s in self.samples if s.complete_ns is not None]

    @property
    def last_complete_ns(self) -> int | None:
        return max(
            (s.complete_ns for s in self.completed if s.complete_ns is not None), default=None
        )


class _Reader:
    """Processes the events in order, and counts tokens in batches."""

    def __init__(self, count: Count | None) -> None:
        self.events = Events()
        self._count = count
        self._by_uuid: dict[str, Sample] = {}
        self._issued_ones: set[str] = set()
        self._open = False
        self._waiting: list[tuple[Sample | None, Answer]] = []

    def take(self, event: dict[str, Any]) -> None:
        kind, stamp_ns = str(event["event_type"]), int(event["timestamp_ns"])
        if kind.startswith("session."):
            self._session(kind.removeprefix("session."), stamp_ns)
        elif kind.startswith("error."):
            self._error(event)
        elif kind.startswith("sample."):
            self._sample(kind.removeprefix("sample."), event, stamp_ns)

    def _session(self, kind: str, stamp_ns: int) -> None:
        self.events.marks[kind] += 1
        if kind == "started" and self.events.began_ns is None:
            self.events.began_ns = stamp_ns
        elif kind == "ended":
            self.events.ended_ns = stamp_ns
        elif kind == "start_performance_tracking":
            self._open = True
            if self.events.start_ns is None:
                self.events.start_ns = stamp_ns
        elif kind == "stop_performance_tracking":
            self._open = False
            self.events.stop_ns = stamp_ns

    def _error(self, event: dict[str, Any]) -> None:
        self.events.errors.append(json.dumps(event.get("data"))[:200])
        sample = self._by_uuid.get(str(event.get("sample_uuid") or ""))
        if sample is not None:
            sample.failed = True

    def _sample(self, kind: str, event: dict[str, Any], stamp_ns: int) -> None:
        uuid = str(event["sample_uuid"])
        if kind == "issued":
            self._issued(uuid, stamp_ns, event.get("data"))
            return
        sample_or_none = self._by_uuid.get(uuid)
        if kind == "complete":
            self._complete(sample_or_none, event, stamp_ns)
        elif sample_or_none is not None:
            if kind == "recv_first":
                sample_or_none.first_ns = stamp_ns
            else:
                sample_or_none.last_ns = stamp_ns

    def _issued(self, uuid: str, stamp_ns: int, data: object) -> None:
        self.events.repeated += uuid in self._issued_ones
        self._issued_ones.add(uuid)
        sample = Sample(uuid, stamp_ns, is_tracked=self._open, prompt=digest(sent_text(data)))
        self._by_uuid[uuid] = sample
        (self.events.samples if self._open else self.events.others).append(sample)
        if self.events.start_ns is None:
            self.events.warm_up_issued += 1
            if self.events.warm_up_first_ns is None:
                self.events.warm_up_first_ns = stamp_ns

    def _complete(self, sample: Sample | None, event: dict[str, Any], stamp_ns: int) -> None:
        if sample is None:  # the sample was completed a second time, or was never issued
            self.events.repeated += 1
        else:
            sample.complete_ns = stamp_ns
            sample.finish_reason = str(event.get("finish_reason") or "")
            self._by_uuid.pop(sample.uuid, None)
        is_tracked = sample is not None and sample.is_tracked
        if not is_tracked:
            self.events.other_answers += 1
            self.events.warm_up_completed += self.events.start_ns is None
        answer = read_answer(event.get("data"))
        self.events.structured += answer.is_structured
        if sample is not None and not is_tracked:
            sample.answer = digest(answer.text.strip())
        self._waiting.append((sample, answer))
        if len(self._waiting) >= BATCH:
            self.flush()

    def flush(self) -> None:
        """Counts the tokens in the answers that the reader has collected."""
        waiting, self._waiting = self._waiting, []
        if self._count is None or not waiting:
            return
        counts = iter(self._count([part for _, one in waiting for part in (one.whole, one.rest)]))
        for sample, answer in waiting:
            tokens, rest = next(counts), next(counts)
            if sample is not None:
                sample.tokens = tokens if answer.whole else None
                sample.rest_tokens = rest
            if sample is None or not sample.is_tracked:
                self.events.other_tokens += tokens


def digest(text: str) -> int:
    """Returns a 64-bit digest of a text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest())


def sent_text(data: object) -> str:
    """Returns the prompt of an issued request. If the data is not a string, returns the data as JSON."""
    if isinstance(data, list) and len(data) > 1 and isinstance(data[1], str):
        return data[1]
    return json.dumps(data, sort_keys=True)


def read_events(path: Path, count: Count | None = None) -> Events:
    """Reads the file. count: function that counts the tokens in texts; None leaves the token counts unknown.

    If the client cannot have written the file, raises a ConfigError with the line number.
    """
    reader = _Reader(count)
    for number, line in _lines(path):
        with reading(f"{path}: line {number} is not an event of the client"):
            reader.take(json.loads(line))
    reader.flush()
    if reader.events.start_ns is None:
        raise ConfigError(
            f"{path} has no start event of performance tracking: check that it is the client's file"
        )
    return reader.events


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(_LONGEST_LINE):
                number += 1
                if line.strip():
                    yield number, line
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
