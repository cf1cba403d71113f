"""Summarises the probes during a load. Probes are small requests on separate connections, like other clients' requests.
Has no side effects.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from harness.core.units import counted, show_ns
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Probes
from harness.results.tokens.section import percentiles_ns


def section(run: Evidence) -> Probes | None:
    """Returns the section of result.json; None without probes. Probes due after the load's last answer do not count,
    because no load delayed them.
    """
    rows = run.probes
    if rows is None or not run.done:
        return None
    last_ns = run.done.columns["completed_ns"].max()
    beside = rows["due_ns"] <= last_ns
    right = beside & (rows["failed"] == 0)
    due_ns, completed_ns = rows["due_ns"][right], rows["completed_ns"][right]
    late = int((~beside).sum())
    failed = int((beside & (rows["failed"] > 0)).sum())
    sent = int(rows["sent"]) - late
    return {
        "rate_per_s": run.plan.probe_rate,
        "sent": sent,
        "answered": len(due_ns),
        "failed": failed,
        "unanswered": max(0, sent - failed - len(due_ns)),
        "latency_ns": percentiles_ns(completed_ns - due_ns),
        "first_token_ns": percentiles_ns(rows["first_ns"][right] - due_ns),
        "send_lag_ns": percentiles_ns(rows["sent_ns"][beside] - rows["due_ns"][beside]),
        "alone_ns": percentiles_ns(np.asarray(rows["alone_ns"])),
    }


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the probes in one line; None without probes."""
    probes = result.get("probes")
    if not probes:
        return None
    words = ["none was answered"]
    if (times := probes["latency_ns"]) is not None:
        over = f"p50 / p99 of {counted(probes['answered'], 'probe')}"
        words = [f"{show_ns(times['p50'])} / {show_ns(times['p99'])} ({over}) during the load"]
    if (alone := probes["alone_ns"]) is not None:
        words.append(f"{show_ns(alone['p50'])} without it (p50)")
    for key in ("failed", "unanswered"):
        if probes[key]:
            words.append(f"{probes[key]:,} of {probes['sent']:,} {key}")
    return ", ".join(words)
