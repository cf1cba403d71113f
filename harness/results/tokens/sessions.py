"""Summarises a run's sessions: their turns, their length, and the turns at which they broke. Has no side effects."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, cast

import numpy as np

from harness.core.codes import Reason
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_MS, NS_PER_S, counted, show_ns, show_percent
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Sessions, TokenRates, TokenTimes, TurnTimes
from harness.results.tokens.section import percentiles_ns, token_times
from harness.types import Array

MOST_TURNS = 100
"""The result lists at most this many turn positions separately."""

MOST_LAG_NS = 10 * NS_PER_MS
MOST_LAG_SHARE = 0.1
"""A run is INVALID if 1 % of its turns are late by more than MOST_LAG_NS and by more than MOST_LAG_SHARE of the median
latency.
"""


def section(run: Evidence) -> Sessions | None:
    """Returns the section of result.json; None for a run without sessions or without answers."""
    columns = run.done.columns if run.done is not None else {}
    if "session" not in columns or not len(columns["session"]):
        return None
    # Sorts samples by session, and the samples of each session by due time.
    by_due = np.lexsort((columns["order"], columns["scheduled_ns"], columns["session"]))
    columns = {name: column[by_due] for name, column in columns.items()}
    session = columns["session"]
    begins = np.flatnonzero(np.diff(session, prepend=session[0] - 1))
    sizes = np.diff(np.append(begins, len(session)))
    failed = np.add.reduceat(columns["failed"] > 0, begins, dtype=np.int64) > 0
    whole = (sizes == columns["session_turns"][begins]) & ~failed
    first_ns = columns["scheduled_ns"][begins]
    length_ns = np.maximum.reduceat(columns["completed_ns"], begins) - first_ns
    turn = np.arange(len(session)) - np.repeat(begins, sizes)
    idle_ns = np.array(
        [
            _idle_ns(columns, begin, begin + size)
            for begin, size in zip(begins[whole].tolist(), sizes[whole].tolist(), strict=True)
        ],
        np.int64,
    )
    complete_ns = length_ns[whole]
    broken_at = Counter(turn[columns["failed"] > 0].tolist())
    return {
        "begun": len(begins),
        "complete": int(whole.sum()),
        "broken": int(failed.sum()),
        "cut": int((~whole & ~failed).sum()),
        "turns_mean": float(sizes.mean()),
        "length_ns": percentiles_ns(complete_ns),
        "busy_ns": percentiles_ns(complete_ns - idle_ns),
        "idle_ns": percentiles_ns(idle_ns),
        "idle_share": _mean_share(idle_ns, complete_ns),
        "tokens_per_s": _rates(columns, begins, whole, complete_ns - idle_ns),
        "send_lag_ns": cast("TokenTimes", percentiles_ns(_lag_ns(columns))),
        "broken_at": {str(number): broken_at[number] for number in sorted(broken_at)},
        "turns": [_turn(columns, turn == n) for n in range(min(MOST_TURNS, int(sizes.max())))],
    }


def _turn(columns: Mapping[str, Array], mine: Array) -> TurnTimes:
    right = mine & (columns["failed"] == 0)
    first, each = token_times({name: column[right] for name, column in columns.items()})
    return {
        "answers": int(right.sum()),
        "latency_ns": percentiles_ns((columns["completed_ns"] - columns["scheduled_ns"])[right]),
        "ttft_ns": first,
        "tpot_ns": each,
    }


def _lag_ns(columns: Mapping[str, Array]) -> Array:
    lag_ns: Array = columns.get("sent_ns", columns["entry_ns"]) - columns["scheduled_ns"]
    return lag_ns


def _mean_share(part_ns: Array, whole_ns: Array) -> float | None:
    return float(np.mean(part_ns / np.maximum(whole_ns, 1))) if len(whole_ns) else None


def _rates(
    columns: Mapping[str, Array], begins: Array, whole: Array, busy_ns: Array
) -> TokenRates | None:
    """Returns the rate that a user sees: the tokens in a session's answers divided by the time spent waiting."""
    if "tokens" not in columns or not whole.any():
        return None
    tokens = np.add.reduceat(columns["tokens"].astype(np.int64), begins)[whole]
    ordered = np.sort(tokens * NS_PER_S / np.maximum(busy_ns, 1))
    p50, p10, p1 = (float(ordered[int(len(ordered) * share)]) for share in (0.5, 0.1, 0.01))
    return {"p50": p50, "p10": p10, "p1": p1}


def reasons(run: Evidence) -> Iterator[Reason]:
    """Yields a reason if the client sent turns too late to replay the sessions faithfully."""
    columns = run.done.columns if run.done is not None else {}
    if "session" not in columns or not len(columns["session"]):
        return
    lag_ns = percentile_ns(np.sort(_lag_ns(columns)), 0.99)
    latency_ns = percentile_ns(np.sort(columns["completed_ns"] - columns["scheduled_ns"]), 0.5)
    if lag_ns > max(MOST_LAG_NS, MOST_LAG_SHARE * latency_ns):
        yield Reason(
            "client-bound",
            f"1 % of the turns were sent more than {show_ns(lag_ns)} after they were due, while the latency's p50 is "
            f"{show_ns(latency_ns)}",
        )


def _idle_ns(columns: Mapping[str, Array], begin: int, end: int) -> int:
    """Returns the time during a session in which no turn was due or in flight."""
    due_ns, end_ns = columns["scheduled_ns"][begin:end], columns["completed_ns"][begin:end]
    latest_ns = np.maximum.accumulate(end_ns)
    return int(np.maximum(0, due_ns[1:] - latest_ns[:-1]).sum())


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the sessions in one line; None without sessions."""
    sessions = result.get("sessions")
    if not sessions:
        return None
    words = [counted(sessions["complete"], "complete session")]
    if sessions["length_ns"] is not None:
        length = sessions["length_ns"]
        words[0] += f" of {show_ns(length['p50'])} / {show_ns(length['p99'])} (p50 / p99)"
    if sessions["idle_share"]:
        words.append(f"{show_percent(sessions['idle_share'])} of the time in delays")
    words += [f"{sessions[key]:,} {key}" for key in ("broken", "cut") if sessions[key]]
    return ", ".join(words)
