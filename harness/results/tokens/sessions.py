"""Summarises the sessions of a run: their turns, their length, and where they broke. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from harness.core.units import counted, show_ns, show_percent
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Sessions, TokenTimes, TurnTimes
from harness.results.tokens.section import percentiles_ns
from harness.types import Array

MOST_TURNS = 100
"""Turns that the result lists apart."""


def section(run: Evidence) -> Sessions | None:
    """Returns the section of result.json; None for a run without sessions or without answers."""
    columns = run.done.columns if run.done is not None else {}
    if "session" not in columns or not len(columns["session"]):
        return None
    # Samples by session, each in the order in which they were due.
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
    sent_ns = columns.get("sent_ns", columns["entry_ns"])
    idle = [
        _idle_share(columns, begin, begin + size)
        for begin, size in zip(begins[whole].tolist(), sizes[whole].tolist(), strict=True)
    ]
    broken_at = Counter(turn[columns["failed"] > 0].tolist())
    return {
        "begun": len(begins),
        "complete": int(whole.sum()),
        "broken": int(failed.sum()),
        "cut": int((~whole & ~failed).sum()),
        "turns_mean": float(sizes.mean()),
        "length_ns": percentiles_ns(length_ns[whole]),
        "idle_share": float(np.mean(idle)) if idle else None,
        "send_lag_ns": cast("TokenTimes", percentiles_ns(sent_ns - columns["scheduled_ns"])),
        "broken_at": {str(number): broken_at[number] for number in sorted(broken_at)},
        "turns": [_turn(columns, turn == n) for n in range(min(MOST_TURNS, int(sizes.max())))],
    }


def _turn(columns: Mapping[str, Array], mine: Array) -> TurnTimes:
    right = mine & (columns["failed"] == 0)
    due_ns = columns["scheduled_ns"][right]
    first_ns = columns["first_token_ns"][right] if "first_token_ns" in columns else None
    begun = first_ns > 0 if first_ns is not None else None
    return {
        "answers": int(right.sum()),
        "latency_ns": percentiles_ns(columns["completed_ns"][right] - due_ns),
        "ttft_ns": percentiles_ns((first_ns - due_ns)[begun]) if first_ns is not None else None,
    }


def _idle_share(columns: Mapping[str, Array], begin: int, end: int) -> float:
    """Returns the share of a session's length in which none of its turns was due or in flight."""
    due_ns, end_ns = columns["scheduled_ns"][begin:end], columns["completed_ns"][begin:end]
    latest_ns = np.maximum.accumulate(end_ns)
    gaps_ns = np.maximum(0, due_ns[1:] - latest_ns[:-1])
    length_ns = int(latest_ns[-1] - due_ns[0])
    return float(gaps_ns.sum() / length_ns) if length_ns else 0.0


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns one line; None without sessions."""
    sessions = result.get("sessions")
    if not sessions:
        return None
    words = [counted(sessions["complete"], "complete session")]
    if sessions["length_ns"] is not None:
        length = sessions["length_ns"]
        words[0] += f" of {show_ns(length['p50'])} / {show_ns(length['p99'])} (p50 / p99)"
    if sessions["idle_share"]:
        words.append(f"{show_percent(sessions['idle_share'])} of it delays")
    words += [f"{sessions[key]:,} {key}" for key in ("broken", "cut") if sessions[key]]
    return ", ".join(words)
