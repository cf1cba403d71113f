"""Splits a run by load host, and summarises each host. Has no side effects."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_S
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.schema.client import LoadHost

HOST = "host"
"""Column of completions.npz: position in --load-hosts of the host that issued the sample.
"""


def runs_of(run: Evidence) -> Iterator[tuple[str, Evidence]]:
    """Yields a (name, part of the run) pair for each host; nothing without --load-hosts."""
    for place, told in enumerate(run.load_hosts):
        done = part_of(run.done, place) if run.done is not None else None
        ended = {"client": told["client"]} if told["client"] is not None else None
        rate, share = run.plan.target_qps, told["queries"] / max(run.plan.query_count, 1)
        plan = replace(run.plan, target_qps=rate * share if rate is not None else None)
        yield told["name"], replace(run, plan=plan, done=done, ended=ended, load_hosts=())


def part_of(done: Completions, place: int) -> Completions:
    """Returns the samples that one load host issued."""
    of_host = done.columns[HOST] == place
    columns = {name: column[of_host] for name, column in done.columns.items()}
    return Completions(columns, int(of_host.sum()), done.answered_once)


def section(run: Evidence) -> Sequence[LoadHost] | None:
    """Returns the section of result.json; None without --load-hosts."""
    if not run.load_hosts:
        return None
    start_ns = int(run.done.columns["scheduled_ns"].min()) if run.done else 0
    pairs = zip(run.load_hosts, runs_of(run), strict=True)
    return [_section(told, of_host, start_ns) for told, (_, of_host) in pairs]


def _section(told: Mapping[str, Any], run: Evidence, start_ns: int) -> LoadHost:
    """Returns one host's entry. start_ns: start of the whole run."""
    client = told["client"] or {}
    shares = client.get("busy_shares")
    host: LoadHost = {
        "name": told["name"],
        "queries": told["queries"],
        "answered": len(run.done) if run.done else 0,
        "per_s": None,
        "p50_ns": None,
        "p99_ns": None,
        "start_skew_ns": None,
        "clock_offset_ns": told["clock_offset_ns"],
        "clock_error_ns": told["clock_error_ns"],
        "clock_drift_ns": told.get("clock_drift_ns"),
        "busy_max": max(shares) if shares else None,
        "ceiling_per_s": client.get("ceiling_per_s"),
        "lost": told["lost"],
    }
    if not run.done:
        return host
    columns, latency_ns = run.done.columns, np.sort(run.done.latency_ns)
    took_ns = int(columns["completed_ns"].max()) - start_ns
    host["per_s"] = len(latency_ns) * NS_PER_S / took_ns if took_ns > 0 else None
    host["p50_ns"], host["p99_ns"] = (percentile_ns(latency_ns, f) for f in (0.50, 0.99))
    host["start_skew_ns"] = int(columns["entry_ns"][0] - columns["scheduled_ns"][0])
    return host
