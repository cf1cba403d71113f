"""Summarises the requests that the client cancelled, and how soon the server then answered other requests. Has no side
effects.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.core.units import counted, show_ns
from harness.loadgen import cancelled
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Cancellations
from harness.results.tokens.section import percentiles_ns
from harness.types import Array


def section(run: Evidence) -> Cancellations | None:
    """Returns the section of result.json; None without --cancel or without answers."""
    done = run.done
    if not run.plan.cancel_share or not done or done.cancelled is None:
        return None
    ended, answered = done.cancelled, done.columns
    right = answered["failed"] == 0
    sent_ns = answered["sent_ns"][right]
    begun_ns = answered.get("first_token_ns", answered["read_ns"])[right]
    next_ones = _next(sent_ns, ended["completed_ns"])
    waits_ns = begun_ns - sent_ns
    others = np.setdiff1d(np.arange(len(sent_ns)), next_ones)
    tokens = ended.get("tokens", np.zeros(0, np.int64))
    return {
        "share": run.plan.cancel_share,
        "after_ns": run.plan.cancel_after_ns,
        "chosen": int(cancelled.chosen(run.plan)[: done.issued].sum()),
        "cancelled": len(ended["order"]),
        "begun": int((ended.get("first_token_ns", tokens) > 0).sum()),
        "tokens": int(tokens.sum()),
        "closed_after_ns": percentiles_ns(ended["read_ns"] - ended["sent_ns"]),
        "next_first_token_ns": percentiles_ns(waits_ns[next_ones]),
        "other_first_token_ns": percentiles_ns(waits_ns[others]),
    }


def _next(sent_ns: Array, ended_ns: Array) -> Array:
    """Returns the position of the first request that was sent after each cancellation."""
    in_order = np.argsort(sent_ns, kind="stable")
    places = np.searchsorted(sent_ns[in_order], np.sort(ended_ns))
    found: Array = in_order[np.unique(places[places < len(in_order)])]
    return found


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the cancelled requests in one line; None without --cancel."""
    found = result.get("cancellations")
    if not found:
        return None
    words = [f"{counted(found['cancelled'], 'request')} after {show_ns(found['after_ns'])}"]
    if found["begun"]:
        words[0] += f" with {counted(found['tokens'], 'token')}"
    after, others = found["next_first_token_ns"], found["other_first_token_ns"]
    if after is not None and others is not None:
        is_streamed = (result.get("tokens") or {}).get("ttft_ns") is not None
        what = "first token" if is_streamed else "answer"
        words.append(
            f"the {what} took {show_ns(after['p50'])} / {show_ns(after['p99'])} for the next request and "
            f"{show_ns(others['p50'])} / {show_ns(others['p99'])} for other requests (p50 / p99)"
        )
    return ", ".join(words)
