"""Shows the requests in a language-model run: a selection over time, and tables by model, step and position. Has no
side effects.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.units import NS_PER_S
from harness.results.evidence.evidence import Evidence
from harness.results.pages.page import Figure, digits
from harness.results.pages.tables import Table, columns
from harness.results.tokens.shown import TIMES, cached

MOST_REQUESTS = 60
"""Number of requests to draw, spread evenly over the run."""

_PARTS = (
    ("waits in the client", "scheduled_ns", "sent_ns"),
    ("first token", "sent_ns", "first_token_ns"),
    ("further tokens", "first_token_ns", "completed_ns"),
)
_ROW_REM = 0.3


def timelines(run: Evidence) -> Iterator[Figure]:
    """Yields the plot that shows single requests; nothing unless a server streamed the answers."""
    done = run.done
    if not done or "first_token_ns" not in done.columns or not done.is_remote:
        return
    found = done.columns
    right = np.flatnonzero((found["failed"] == 0) & (found["first_token_ns"] > 0))
    if not len(right):
        return
    chosen = right[np.unique(np.linspace(0, len(right) - 1, MOST_REQUESTS).astype(int))]
    begin_ns = int(found["scheduled_ns"].min())
    order = found["order"][chosen].tolist()
    bars = [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": order,
            "base": digits((found[begin][chosen] - begin_ns) / NS_PER_S),
            "x": digits(np.maximum(0, found[end][chosen] - found[begin][chosen]) / NS_PER_S),
            "width": max(1.0, (order[-1] - order[0]) / MOST_REQUESTS),
        }
        for name, begin, end in _PARTS
    ]
    yield Figure(
        "Requests",
        f"{len(chosen):,} of {len(right):,} answers, each drawn from the time at which its query was due.",
        bars,
        {
            "barmode": "overlay",
            "xaxis": {"title": "s after the first query was due"},
            "yaxis": {"title": "query", "autorange": "reversed"},
        },
        height_rem=8 + _ROW_REM * len(chosen),
    )


def tables(result: Mapping[str, Any]) -> Iterator[Table]:
    """Yields the tables for the result's sections on requests."""
    if found := result.get("tokens"):
        yield from _of_tokens(found, [f"{text}." for text in cached(result)])
    if found := result.get("by_model"):
        yield _of_models(found)
    if found := result.get("ramp"):
        yield _of_steps(found)
    if found := (result.get("tokens") or {}).get("itl_by_position"):
        yield _of_positions(found)


def _of_tokens(found: Mapping[str, Any], notes: Sequence[str]) -> Iterator[Table]:
    rows = [
        (name, *(found[key][percentile] for percentile in ("p50", "p90", "p99")))
        for key, name in TIMES.items()
        if found.get(key) is not None
    ]
    if rows:
        heads = columns("time | p50 [ns] | p90 [ns] | p99 [ns]")
        about = (
            "TTFT: from the due time to the first token. TPOT: mean time per further token of an answer. ITL: time between "
            "two tokens."
        )
        yield Table("token_times", "Token times", about, heads, rows, notes)


def _of_models(found: Mapping[str, Any]) -> Table:
    def p(times: Mapping[str, Any] | None, name: str) -> Any:
        return times[name] if times else None

    rows = [
        (
            each["model"],
            each["requests"],
            each["share"],
            each["failed"],
            each["user_tokens_per_s"],
            *(p(each[time], name) for time in ("ttft_ns", "latency_ns") for name in ("p50", "p99")),
        )
        for each in found["models"]
    ]
    heads = columns(
        "model | requests [count] | share [share] | failed [count] | per user [tokens/s] | TTFT p50 [ns] | "
        "TTFT p99 [ns] | p50 [ns] | p99 [ns]"
    )
    notes = []
    if found["fairness"] is not None:
        slowest = f"{found['slowest']}, {found['slowest_ratio']:.2f} x the fastest"
        text = (
            f"Slowest: {slowest} ({found['compared']}). Fairness (Jain): {found['fairness']:.3f}."
        )
        notes = [text]
    return Table(
        "by_model",
        "By model",
        "Times are counted from the time at which the query was due.",
        heads,
        rows,
        notes,
    )


def _of_steps(found: Mapping[str, Any]) -> Table:
    rows = [
        (
            "hold" if step["holds"] else "step",
            step["rate_per_s"],
            step["queries"],
            *(step[name] for name in ("share", "share_low", "share_high", "p50_ns", "p99_ns")),
            "broken" if step["broken"] else "",
        )
        for step in found["steps"]
    ]
    heads = columns(
        "kind | rate [queries/s] | queries [count] | met every SLO [share] | low [share] | high [share] | p50 [ns] | "
        "p99 [ns] | verdict"
    )
    about = "The rate grew until a step was shown to miss an SLO (95 % confidence), and was then held below that rate."
    return Table("ramp", "Ramp", about, heads, rows)


def _of_positions(found: list[Mapping[str, Any]]) -> Table:
    rows = [
        (_positions(each["first"], each["last"]), each["tokens"], each["p50_ns"], each["p99_ns"])
        for each in found
    ]
    heads = columns("token of the answer | tokens [count] | p50 [ns] | p99 [ns]")
    about = "Time between tokens (ITL) by the position of the later token in its answer."
    return Table("itl_by_position", "Time between tokens by position", about, heads, rows)


def _positions(first: int, last: int) -> str:
    return f"{first:,}" if first == last else f"{first:,} to {last:,}"
