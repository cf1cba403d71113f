"""Searches the events for signs of wrong numbers: in the request order, queue, clocks, tokens and lag."""

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.units import show_ns, show_percent
from harness.submit.endpoints.witness.events import Events
from harness.submit.endpoints.witness.numbers import duration_ns

LEAST_IN_FLIGHT = 0.95
"""The witness doubts a run whose mean number of queries in flight, excluding the end of the run, is below this share of
the concurrency.
"""

MOST_LAG = 0.01
"""The witness doubts a run in which the median time between an answer and the next request exceeds this share of the
mean latency.
"""

MOST_TOKENS = 0.02
"""The witness doubts a run in which the server's and the client's token counts differ by more than this share. One
additional end token per answer is allowed.
"""

MOST_CHUNK = 0.01
"""The witness doubts a run in which the mean TPOT until completion and the mean TPOT until the last chunk differ by
more than this share.
"""


REFUSED = frozenset(
    {
        *("order-differs", "map-differs", "above-concurrency", "client-changed", "clock"),
        *("several-sessions", "requests-repeated", "times-repeated", "events-copied"),
        *("prompts-differ", "seeds-differ", "config-differs", "snapshot-differs"),
        *("accuracy-differs", "faster-than-server"),
    }
)
"""Codes for doubts that an unmodified client with honest files never causes. `pack` refuses a run that has any of these
doubts.
"""


class Doubt(NamedTuple):
    code: str
    text: str


def order(path: Path, seed: int, size: int) -> Iterator[Doubt]:
    """Compares the request order in sample_idx_map.json with the order that the seed generates."""
    indices = issue_order(path)
    if not indices:
        yield Doubt("order-unknown", f"{path.name} does not contain the order of the samples")
        return
    expected = seeded_order(seed, size, len(indices))
    wrong = next(
        (i for i, pair in enumerate(zip(indices, expected, strict=True)) if pair[0] != pair[1]),
        None,
    )
    if wrong is not None:
        yield Doubt(
            "order-differs",
            f"request {wrong + 1:,} is sample {indices[wrong]}, but seed {seed} gives sample {expected[wrong]}",
        )


def issue_order(path: Path) -> Sequence[int]:
    """Returns the sample that each request sent, in the order of issue; () if the client's map cannot be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [int(sample) for sample in content["performance"].values()]
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        return ()


def seeded_order(seed: int, size: int, count: int) -> Sequence[int]:
    """Returns the order that the client generates: all samples, shuffled again for each pass."""
    generator, samples = random.Random(seed), list(range(size))
    found: list[int] = []
    while len(found) < count:
        generator.shuffle(samples)
        found += samples
    return found[:count]


def events_and_map(events: Events, path: Path, *, is_agentic: bool) -> Iterator[Doubt]:
    """Checks that the map lists exactly the tracked requests, in the order of their events.

    In an agentic run, tracking stops when the first user has finished, but the map continues with later requests.
    """
    try:
        named = list(json.loads(path.read_text(encoding="utf-8"))["performance"])
    except (OSError, ValueError, KeyError, TypeError):
        return  # `order` reports the unreadable file
    issued = [s.uuid for s in events.samples]
    if is_agentic and events.stop_ns is not None:
        later = [s.uuid for s in events.others if s.issued_ns >= events.stop_ns]
        issued += later[: max(0, len(named) - len(issued))]
    if named != issued:
        common = len({*named} & {*issued})
        yield Doubt(
            "map-differs",
            f"{path.name} has {len(named):,} requests and the events have {len(issued):,}; {common:,} are in both"
            + ("" if common < len(issued) else ", but in a different order"),
        )


def in_flight(events: Events, concurrency: int) -> Iterator[Doubt]:
    """Checks Little's law, and checks that the number of queries in flight never exceeded the concurrency.

    Ignores the time after the last request, when the queue only drains.
    """
    done = events.completed
    if not done or events.start_ns is None:
        return
    last_issue_ns = events.samples[-1].issued_ns
    span_ns = last_issue_ns - events.start_ns
    busy_ns = sum(
        min(s.complete_ns or 0, last_issue_ns) - s.issued_ns
        for s in done
        if s.issued_ns < last_issue_ns
    )
    mean = busy_ns / span_ns if span_ns > 0 else float(concurrency)
    if mean < LEAST_IN_FLIGHT * concurrency:
        yield Doubt(
            "below-concurrency", f"{mean:.2f} queries were in flight on average, not {concurrency}"
        )
    if (most := most_in_flight(events)) > concurrency:
        yield Doubt(
            "above-concurrency", f"{most} queries were in flight at once, not {concurrency}"
        )


def most_in_flight(events: Events) -> int:
    """Returns the largest number of open requests. If an answer and a request have the same time, counts the answer
    first.
    """
    changes = sorted(
        [(s.issued_ns, 1) for s in events.samples]
        + [(s.complete_ns, -1) for s in events.completed if s.complete_ns is not None]
    )
    open_now = most = 0
    for _, change in changes:
        open_now += change
        most = max(most, open_now)
    return most


def refill_lag_ns(events: Events, concurrency: int) -> np.ndarray[Any, Any]:
    """Returns the time between each answer and the request that replaced it, without the first `concurrency` requests."""
    issued = np.array([s.issued_ns for s in events.samples], dtype=np.int64)
    completed = np.sort([s.complete_ns for s in events.completed if s.complete_ns is not None])
    later = issued[concurrency:]
    return later - completed[: len(later)] if len(completed) >= len(later) else later[:0]


def lag(events: Events, concurrency: int) -> Iterator[Doubt]:
    """Checks how long the client takes to send the next request after an answer."""
    found = refill_lag_ns(events, concurrency)
    latencies = [s.complete_ns - s.issued_ns for s in events.completed if s.complete_ns is not None]
    if not len(found) or not latencies:
        return
    half = float(np.percentile(found, 50))
    share = half / (sum(latencies) / len(latencies))
    if share > MOST_LAG:
        yield Doubt(
            "client-slow",
            f"after half of the answers the client took more than {show_ns(half)} ({show_percent(share, 1)} of the mean "
            "latency) to send the next request",
        )


def negative_tpot(events: Events) -> Iterator[Doubt]:
    """Counts samples whose completion is stamped earlier than their first chunk, and shows the TPOT up to the last
    chunk.
    """
    if events.uncounted:
        return
    times = [one for s in events.samples if (one := s.tpot_ns) is not None]
    negative = sum(one <= 0 for one in times)
    if negative:
        yield Doubt(
            "tpot-negative",
            f"{negative:,} of {len(times):,} samples have a TPOT of 0 or less, because the client stamps the first "
            "chunk and the completion in different processes",
        )
    both = [
        (one, other)
        for s in events.samples
        if (one := s.tpot_ns) is not None and (other := s.chunk_tpot_ns) is not None
    ]
    if both:
        ours, theirs = (sum(column) / len(both) for column in zip(*both, strict=True))
        if theirs > 0 and abs(ours / theirs - 1) > MOST_CHUNK:
            yield Doubt(
                "tpot-by-chunk",
                f"the mean TPOT is {show_ns(ours)} up to the completion, but {show_ns(theirs)} up to the last chunk",
            )


def server_tokens(events: Events, server: Mapping[str, Any] | None) -> Iterator[Doubt]:
    """Compares the client's token count with the growth of the server's counter during the run."""
    found = tokens_of_server(server)
    if found is None or events.uncounted or events.structured:
        return
    answers = len(events.completed) + events.other_answers
    ours = sum(s.tokens or 0 for s in events.completed) + events.other_tokens
    slack = MOST_TOKENS * max(ours, 1)
    if not ours - slack <= found <= ours + answers + slack:
        yield Doubt(
            "tokens-differ",
            f"the server counts {found:,.0f} tokens, the client {ours:,} in {answers:,} answers",
        )


def tokens_of_server(server: Mapping[str, Any] | None) -> float | None:
    first, last = ((server or {}).get(key) or {} for key in ("first", "last"))
    name = "generated_tokens"
    return last[name] - first[name] if name in first and name in last else None


def errors(events: Events) -> Iterator[Doubt]:
    failed = sum(s.failed for s in events.samples)
    lost = len(events.samples) - len(events.completed)
    if failed:
        yield Doubt("failed-requests", f"{failed:,} requests failed, e.g. {events.errors[0]}")
    if lost:
        yield Doubt("lost-requests", f"{lost:,} requests have no completion")
    if events.last_complete_ns is not None and duration_ns(events) <= 0:
        yield Doubt("clock", "the last completion precedes the start of performance tracking")
