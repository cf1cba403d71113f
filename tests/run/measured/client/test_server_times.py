"""The servers' own times come from the headers of replies, or from totals read before and after the run."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.remote import ServerTotals
from harness.run.measured.client import server_times
from harness.run.measured.client.server_times import Heads, from_heads, from_totals, times_of

NS = st.integers(0, 10**12)


def head(*lines: str) -> bytes:
    return "\r\n".join(["HTTP/1.1 200 OK", *lines, "Content-Length: 4", "", ""]).encode()


@given(st.tuples(NS, NS, NS))
def test_times_written_by_serve_are_read_to_the_ns(times: tuple[int, int, int]) -> None:
    queue, compute, total = (ns / 1e6 for ns in times)
    line = f"Server-Timing: queue;dur={queue:.6f}, compute;dur={compute:.6f}, total;dur={total:.6f}"
    assert times_of(head("Content-Type: x", line)) == times


@pytest.mark.parametrize(
    "lines",
    [
        (),
        ("Server-Timing: cache;desc=hit",),
        ("Server-Timing: queue;dur=1, compute;dur=2",),
        ("X-Server-Timing: queue;dur=1, compute;dur=2, total;dur=3",),
        ("Server-Timing: queue;dur=a, compute;dur=2, total;dur=3",),
    ],
)
def test_header_without_one_of_its_parts_is_ignored(lines: tuple[str, ...]) -> None:
    assert times_of(head(*lines)) is None


def test_medians_use_the_last_replies_that_report_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server_times, "MOST_HEADS", 4)
    heads = Heads()
    for ms in (500, 500, 1, 2, 30):
        heads.append(head(f"server-timing: queue;dur=0, compute;dur={ms}, total;dur={ms + 1}"))
    heads.append(head())
    assert from_heads(heads) == {
        "source": "Server-Timing",
        "requests": 3,
        "queue_ns": 0,
        "compute_ns": 2_000_000,
        "total_ns": 3_000_000,
    }
    assert from_heads([head()]) is None


def test_difference_of_totals_is_the_mean_of_the_requests_between() -> None:
    before, after = ServerTotals(10, 100, 1000, 2000), ServerTotals(14, 140, 1800, 3200)
    assert from_totals(before, after) == {
        "source": "statistics",
        "requests": 4,
        "queue_ns": 10,
        "compute_ns": 200,
        "total_ns": 300,
    }
    assert from_totals(before, before) is None
    assert from_totals(after, before) is None  # the totals fell, because the server was restarted
    assert from_totals(None, after) is None
