"""Compares load hosts' times with the coordinator's own queries to the same server, and with each other. Has no side
effects.

Nothing observes a host on a different machine, so its times cannot be verified. The check can only reveal that a host's
times are shorter than the times that the server gives the coordinator and the other hosts.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from harness.core.codes import Reason
from harness.core.stats import percentile_ns
from harness.core.units import counted, show_ns
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.load_hosts.section import part_of
from harness.results.schema.client import Witness
from harness.types import Array

COORDINATOR = "coordinator"
"""Name of the process on this machine that sends the coordinator's own queries."""

WITNESS_FACTOR = 1.25
PEER_FACTOR = 2.0
"""A run gets a doubt if the coordinator measured a percentile above WITNESS_FACTOR times a host's percentile, or if all
other hosts measured percentiles above PEER_FACTOR times the host's. The round trip of pings between the machines is
added to each product. The factors exceed 1, because two paths to a server are never equal.
"""

FRACTIONS = (0.5, 0.75, 0.9, 0.95, 0.99)

CHANCE = 1e-4
"""A difference counts only if the random choice of queries would cause it with a probability below this value."""


class _Times(NamedTuple):
    """Times from the sending of a request to a server, measured by the clients on one machine.
    All: (n,) ns, ascending.
    """

    answer_ns: Array
    first_token_ns: Array


def seen(done: Completions) -> dict[str, Any]:
    """Returns the facts about the coordinator's queries that the run's files store. Each time runs from `sent` to
    `arrived`.
    """
    times = _server_times(done)
    return {
        "queries": done.issued,
        "answered": len(times.answer_ns),
        "remote_ns": times.answer_ns.tolist(),
        "first_token_ns": times.first_token_ns.tolist(),
    }


def section(run: Evidence) -> Witness | None:
    """Returns the section of result.json; None without load hosts on other machines."""
    told = run.witness
    if told is None:
        return None
    ordered = told["remote_ns"]
    p50, p99 = (percentile_ns(ordered, f) if ordered else None for f in (0.50, 0.99))
    return {
        "queries": told["queries"],
        "answered": told["answered"],
        "p50_ns": p50,
        "p99_ns": p99,
    }


def doubts(run: Evidence) -> Iterator[Reason]:
    """Yields doubts about a lost coordinator, and about hosts whose times are shorter than the coordinator's or all
    other hosts'.
    """
    done, hosts = run.done, run.load_hosts
    if done is None or run.witness is None:
        return
    if lost := run.witness.get("lost"):
        asked = counted(run.witness["answered"], "answer")
        yield Reason(
            "load-host-unwitnessed",
            f"the coordinator's own queries ended before the run ({lost}): only {asked} can be compared with the load "
            "hosts",
        )
    trips_ns = [2 * host["clock_error_ns"] for host in hosts]
    times = [_server_times(part_of(done, place)) for place in range(len(hosts))]
    witness = _Times(*(np.array(run.witness[key]) for key in ("remote_ns", "first_token_ns")))
    for place, host in enumerate(hosts):
        own = times[place]
        text = _shorter(own, witness, WITNESS_FACTOR, trips_ns[place], "the coordinator")
        if not text:
            others = [
                _shorter(
                    own, times[n], PEER_FACTOR, trips_ns[place] + trips_ns[n], hosts[n]["name"]
                )
                for n in range(len(hosts))
                if n != place
            ]
            text = others[0] if others and all(others) else ""
        if text:
            yield Reason("load-host-faster", f"load host {host['name']}: {text}")


def _shorter(own: _Times, others: _Times, factor: float, allowed_ns: int, name: str) -> str:
    """Returns how a host's times contradict another machine's times; "" without a contradiction."""
    for what, ours, theirs in zip(("answer", "first token"), own, others, strict=True):
        for fraction in FRACTIONS if len(ours) and len(theirs) else ():
            reported_ns = percentile_ns(ours, fraction)
            longer = int((theirs > factor * reported_ns + allowed_ns).sum())
            if _is_unlikely(longer, len(theirs), 1 - fraction):
                percentile = f"p{fraction * 100:.0f}"
                return (
                    f"from request to {what} it reports a {percentile} of {show_ns(reported_ns)}, but {name} measured "
                    f"{show_ns(percentile_ns(theirs, fraction))}: {longer:,} of {name}'s {len(theirs):,} queries took more "
                    f"than {factor:g} times as long"
                )
    return ""


def _is_unlikely(count: int, of: int, share: float) -> bool:
    """Returns whether the probability that a binomial draw reaches `count` is below CHANCE, by Chernoff's bound."""
    found = count / of
    if found <= share:
        return False
    rest = (1 - found) * math.log((1 - found) / (1 - share)) if found < 1 else 0.0
    return of * (found * math.log(found / share) + rest) > -math.log(CHANCE)


def _server_times(done: Completions) -> _Times:
    """Returns times that end at the kernel's timestamp, and so exclude the client's share. Excludes failed samples."""
    columns, (begin, end) = done.columns, done.answer_edge
    good = columns["failed"] == 0
    first_ns = np.zeros(0, np.int64)
    if "first_token_ns" in columns:
        streamed = good & (columns["first_token_ns"] > 0)
        first_ns = np.sort((columns["first_token_ns"] - columns[begin])[streamed])
    return _Times(np.sort((columns[end] - columns[begin])[good]), first_ns)
