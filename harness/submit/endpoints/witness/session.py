"""Checks from marks, requests, clock and prompts that the events come from a single session of the client."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from harness.core.units import show_ns
from harness.submit.endpoints.runs import SERVER_TIMES
from harness.submit.endpoints.witness.doubts import Doubt
from harness.submit.endpoints.witness.events import Events, Sample, digest

_MARKS = ("started", "start_performance_tracking", "stop_performance_tracking", "ended")
_MOST_ACTIVE, _MOST_ACTIVE_S = 1.25, 10.0
"""The server may generate tokens for at most _MOST_ACTIVE times the duration of the events, plus _MOST_ACTIVE_S because
of the interval between readings.
"""

_SLACK_NS = 1_000_000_000
_LEAST_OF_SERVER = 0.95
"""The client's mean time must be at least this share of the server's mean, which may include a few requests from other
clients.
"""

_MOST_REPEATED = 0.01
"""The witness doubts a run in which more than this share of the requests repeat both the TTFT and the latency of
another request, to the ns.
"""

_FEWEST_REPEATED = 3
_MOST_LENGTH = 1.1
"""An answer may contain at most this factor times max_new_tokens tokens. The factor exceeds 1, because
tokenising an answer's text again may yield more tokens than the server generated.
"""


def structure(events: Events) -> Iterator[Doubt]:
    """Checks that the events form one session with one tracked period, and that no request appears twice."""
    wrong = [f"{events.marks[mark]} of {mark}" for mark in _MARKS if events.marks[mark] != 1]
    if wrong:
        yield Doubt(
            "several-sessions",
            f"the events have {', '.join(wrong)}, but must have exactly one of each",
        )
    if events.repeated:
        yield Doubt(
            "requests-repeated", f"{events.repeated:,} requests were issued or completed twice"
        )


def clock(events: Events, run: Mapping[str, Any], *, is_closed_loop: bool) -> Iterator[Doubt]:
    """Checks that every time is possible, that the events lie within the client's run and cover the server's work, and
    that the events have no gaps.
    """
    early = sum(map(_is_early, [*events.samples, *events.others]))
    if early:
        yield Doubt("clock", f"{early:,} requests were answered before they were issued")
    yield from _against_run(events, run)
    yield from _against_server(events, run.get("server"))
    if is_closed_loop and (hole_ns := longest_hole_ns(events)):
        text = f"no request was issued or answered for {show_ns(hole_ns)}, which is longer than any answer took"
        yield Doubt("clock", text)


def _against_run(events: Events, run: Mapping[str, Any]) -> Iterator[Doubt]:
    """Compares the events with readings of the monotonic clock before and after the client's run. The client stamps its
    events with the same clock.
    """
    around = run.get("monotonic_ns")
    began_ns, ended_ns = events.began_ns, events.ended_ns
    if not isinstance(around, list) or len(around) != 2 or began_ns is None or ended_ns is None:
        return
    if began_ns < around[0] or ended_ns > around[1]:
        late_ns = max(around[0] - began_ns, ended_ns - around[1])
        yield Doubt("clock", f"the events reach {show_ns(late_ns)} beyond the client's run")


def _against_server(events: Events, server: object) -> Iterator[Doubt]:
    active_s = server.get("active_s") if isinstance(server, Mapping) else None
    requests = [*events.samples, *events.others]
    ends = [s.complete_ns for s in requests if s.complete_ns is not None]
    if not isinstance(active_s, int | float) or not ends:
        return
    span_s = (max(ends) - min(s.issued_ns for s in requests)) / 1e9
    if active_s > _MOST_ACTIVE * span_s + _MOST_ACTIVE_S:
        text = f"the server generated tokens for {active_s:,.0f} s, but the events cover {span_s:,.0f} s"
        yield Doubt("clock", text)


def _is_early(sample: Sample) -> bool:
    stamps = (sample.first_ns, sample.complete_ns)
    return any(stamp is not None and stamp < sample.issued_ns for stamp in stamps)


def longest_hole_ns(events: Events) -> int:
    """Returns the longest time without a tracked event if this time exceeds the longest answer's latency; otherwise 0."""
    done = events.completed
    if not done or events.start_ns is None:
        return 0
    stamps = [events.start_ns, *(s.issued_ns for s in events.samples)]
    stamps += [s.complete_ns for s in done if s.complete_ns is not None]
    stamps += [s.first_ns for s in done if s.first_ns is not None]
    if events.stop_ns is not None:
        stamps.append(events.stop_ns)
    stamps.sort()
    hole_ns = max(later - earlier for earlier, later in pairwise(stamps))
    longest_ns = max((s.complete_ns or 0) - s.issued_ns for s in done)
    return hole_ns if hole_ns > longest_ns + _SLACK_NS else 0


def repeated_times(events: Events) -> Iterator[Doubt]:
    """Looks for requests whose times are equal to the ns, because such requests are copies."""
    pairs = Counter(
        (s.first_ns - s.issued_ns, s.complete_ns - s.issued_ns)
        for s in events.samples
        if s.first_ns is not None and s.complete_ns is not None
    )
    again = pairs.total() - len(pairs)
    if again >= _FEWEST_REPEATED and again > _MOST_REPEATED * pairs.total():
        yield Doubt(
            "times-repeated",
            f"{again:,} of {pairs.total():,} requests have the same TTFT and latency as an earlier request, to the ns",
        )


def prompts(events: Events, order: Sequence[int], rows: Sequence[str]) -> Iterator[Doubt]:
    """Checks that all requests for the same sample sent the same prompt and, if the data set's prompts are known, the
    right prompt.

    order: the sample that each request sent. rows: prompts in the data set; () if unknown.
    """
    if len(order) != len(events.samples):
        return  # because the map covers other requests, which another doubt reports
    first: dict[int, int] = dict(enumerate(map(digest, rows)))
    wrong = [
        sample
        for sample, request in zip(order, events.samples, strict=True)
        if first.setdefault(sample, request.prompt) != request.prompt
    ]
    if wrong:
        where = "the data set" if rows else "an earlier request for the sample"
        yield Doubt(
            "prompts-differ",
            f"{len(wrong):,} requests, e.g. for sample {wrong[0]}, have a different prompt than {where}",
        )


def lengths(events: Events, most: object) -> Iterator[Doubt]:
    """Looks for answers that have more tokens than the client requested. most: max_new_tokens."""
    if not isinstance(most, int) or events.uncounted:
        return
    long = [s.tokens for s in events.samples if (s.tokens or 0) > _MOST_LENGTH * most + 1]
    if long:
        yield Doubt(
            "answers-too-long",
            f"{len(long):,} answers are longer than max_new_tokens {most:,}, e.g. {max(filter(None, long)):,} tokens",
        )


def server_times(events: Events, server: Mapping[str, Any] | None) -> Iterator[Doubt]:
    """Checks that the client's mean times are not shorter than the times that the server measured for the same
    requests.
    """
    requests = [*events.samples, *events.others]
    ours = {
        "first_token": [s.first_ns - s.issued_ns for s in requests if s.first_ns is not None],
        "request": [s.complete_ns - s.issued_ns for s in requests if s.complete_ns is not None],
    }
    for name, values in ours.items():
        theirs_ns = mean_of_server_ns(server, name)
        if theirs_ns is None or not values:
            continue
        mean_ns = sum(values) / len(values)
        if mean_ns < _LEAST_OF_SERVER * theirs_ns:
            what = "TTFT" if name == "first_token" else "latency"
            yield Doubt(
                "faster-than-server",
                f"the mean {what} is {show_ns(mean_ns)}, but {show_ns(theirs_ns)} by the server's clock",
            )


def mean_of_server_ns(server: Mapping[str, Any] | None, name: str) -> float | None:
    """Returns the server's mean time for the requests between its first and last reading; None if the readings do not
    contain this time.
    """
    first, last = ((server or {}).get(key) or {} for key in ("first", "last"))
    for series in SERVER_TIMES[name]:
        keys = (f"{series}_sum", f"{series}_count")
        if all(key in row for key in keys for row in (first, last)):
            seconds, count = (last[key] - first[key] for key in keys)
            return seconds / count * 1e9 if count > 0 else None
    return None
