"""Collects the times that servers report: in each reply (`Server-Timing`), or as totals before and after a run."""

import re
from collections import deque
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

import numpy as np

from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_MS
from harness.remote import Reply, ServerTotals

HEADER = "Server-Timing"
MOST_HEADS = 65_536
"""Only this many of the most recent reply heads (16 MB) are kept."""

MOST_NS = 10**15
"""A reported time above this limit (eleven days) is ignored as implausible."""

PARTS = ("queue", "compute", "total")
_LINE = re.compile(rb"\r\nserver-timing:([^\r]*)", re.IGNORECASE)
_DURATION = re.compile(rb"(\w+)\s*;\s*dur=(\d+(?:\.\d+)?)")


class Heads(deque[bytes]):
    """The heads of the most recent replies. The hot path only stores the heads; a parser reads them after the run."""

    def __init__(self) -> None:
        super().__init__(maxlen=MOST_HEADS)


def times_of(head: bytes) -> tuple[int, int, int] | None:
    """Returns (queue, compute, total) in ns, as `serve` sends these times; None if the head lacks any of them.

    Source: W3C Server Timing, whose durations are in ms.
    """
    found = _LINE.search(head)
    if found is None:
        return None
    told = {name.decode(): float(ms) for name, ms in _DURATION.findall(found[1])}
    if not all(told.get(part, inf) * NS_PER_MS <= MOST_NS for part in PARTS):
        return None
    queue, compute, total = (round(told[part] * NS_PER_MS) for part in PARTS)
    return queue, compute, total


def tells(reply: Reply) -> bool:
    """Returns whether this reply reports the server's times."""
    return times_of(reply.head) is not None


def from_heads(heads: Sequence[bytes]) -> Mapping[str, Any] | None:
    """Returns the medians over the replies; None if no reply reports times."""
    told = [times for head in heads if (times := times_of(head)) is not None]
    if not told:
        return None
    columns = np.sort(np.array(told, np.int64), axis=0).T
    parts = {
        f"{part}_ns": percentile_ns(one, 0.5) for part, one in zip(PARTS, columns, strict=True)
    }
    return {"source": HEADER, "requests": len(told), **parts}


def from_totals(
    before: ServerTotals | None, after: ServerTotals | None
) -> Mapping[str, Any] | None:
    """Returns the mean times of the requests between two totals; None if no request was made or the server restarted."""
    if before is None or after is None:
        return None
    less = ServerTotals(*(b - a for a, b in zip(before, after, strict=True)))
    if less.requests < 1 or min(less) < 0 or max(less) > MOST_NS:
        return None
    parts = (less.queue_ns, less.compute_ns, less.total_ns)
    means = {f"{part}_ns": ns // less.requests for part, ns in zip(PARTS, parts, strict=True)}
    return {"source": "statistics", "requests": less.requests, **means}
