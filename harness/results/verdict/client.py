"""Judges whether the client, not the server, limited a run, and what happened to the client's requests. Has no side
effects.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.codes import Reason
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_MS, NS_PER_S, counted, show_ns, show_percent, show_rate
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.evidence import Evidence
from harness.results.load_hosts.section import runs_of
from harness.results.schema.client import Client, ServerTimes
from harness.results.verdict import token_counts
from harness.results.verdict.token_counts import client_told

NOTICE_DOUBT = 0.10
NOTICE_REASON = 0.50
"""If the p99 of the stage `notice` is more than this share of the latency's p99, the client limited the run. The run
gets a doubt if the p99 exceeds NOTICE_DOUBT of the latency's p99, or of the SLO's bound.
"""

STOOD_NS = 250 * NS_PER_MS
STOOD_DOUBT_NS = NS_PER_S
STOOD_REASON = 0.50
"""A client stands still if it issues nothing for STOOD_NS although a query is due. The run gets a doubt if a standstill
is longer than STOOD_DOUBT_NS. The client limited the run if the standstill delays the issue by more than STOOD_REASON
of the latency at the same percentile.
"""

BUSY_DOUBT = 0.70
BUSY_SECOND = 0.95
BUSY_SECONDS_REASON = 0.10
"""If the receiving thread is busy for more than BUSY_DOUBT of its busiest second, the run gets a doubt. If it is busy
for more than BUSY_SECOND of the time in more than BUSY_SECONDS_REASON of the seconds, the client limited the run.
"""

ASKED_DOUBT = 0.50
REACHED_REASON = 0.80
"""The run gets a doubt if the requested rate in Server exceeds the share ASKED_DOUBT of the ceiling. The client limited
the run if the actual rate in Offline or a closed loop exceeds the share REACHED_REASON of the ceiling.
"""

WAITED_DOUBT = 0.001
RESENT_REASON = 0.001
OUTAGE_S = 0.25
"""If no connection is accepted for longer than this, the time counts as an outage. A full queue clears sooner."""

LEAST_TOTAL_NS = 1_000
TIMES_TOLERANCE = 1.25
"""The run gets a doubt if a server reports a total time below LEAST_TOTAL_NS, in which no server can read and answer a
request. It also gets a doubt if the reported times contradict each other or the client's times by more than the factor
TIMES_TOLERANCE.
"""

RESENT_FEW = 3
"""Any run may send this many requests twice, because in a short run a single request would exceed RESENT_REASON."""


def section(run: Evidence) -> Client | None:
    """Returns the section of result.json; None if no server answered or the run did not end by itself."""
    told = client_told(run)
    if not told:
        return None
    shares = told["busy_shares"]
    full = sum(share > BUSY_SECOND for share in shares)
    return {
        "peers": told["peers"],
        "sut_name": told["sut_name"],
        "connections": told["connections"],
        "dispatcher": told["dispatcher"],
        "request_timeout_s": told["request_timeout_s"],
        "ceiling_per_s": told["ceiling_per_s"],
        "floor_p50_ns": told["floor_p50_ns"],
        "no_ceiling": told["no_ceiling"],
        "busy_max": max(shares) if shares else None,
        "busy_seconds": full / len(shares) if shares else None,
        "notice_p99_ns": _notice_p99_ns(run),
        "no_notice": _no_notice(run, told["peers"][0]["url"]),
        "waited": told["waited"],
        "resent": told["resent"],
        "reopened": told["reopened"],
        "replies_per_connection": told.get("closes_after") or None,
        "outage_s": told.get("outage_s", 0.0),
        "failures": told["failures"],
        "json_ns": told["json_ns"],
        "server_times": told["server_times"],
    }


def elsewhere(run: Evidence) -> Sequence[str]:
    """Returns the servers and nodes on other machines."""
    return [peer["url"] for peer in client_told(run).get("peers") or () if not peer["local"]]


def _no_notice(run: Evidence, url: str) -> str:
    """Returns why the stage `notice` is missing; empty if it is present, or if no sample was completed."""
    if not run.done or "notice" in run.done.edges:
        return ""
    if url.startswith(("grpc:", "grpcs:")):
        return "gRPC's library does not expose the kernel's stamps"
    return "the kernel stamped no reply"


def _notice_p99_ns(run: Evidence) -> int | None:
    done = run.done
    if not done or "notice" not in done.edges:
        return None
    return percentile_ns(np.sort(done.spent_ns("notice")), 0.99)


def reasons(run: Evidence, completed_per_s: float | None) -> Iterator[Reason]:
    """Yields reasons if the client limited the run. completed_per_s: samples/s of the performance run."""
    client = section(run)
    if client is None or not run.done:
        return
    yield from token_counts.reasons(run)
    for name, of_host in _by_host(run):
        own = section(of_host)
        if own is not None and of_host.done:
            for text in _bound_by(of_host, own, completed_per_s):
                yield Reason("client-bound", f"{name}: {text}" if name else text)
    if client["resent"] > max(RESENT_FEW, RESENT_REASON * len(run.done)):
        yield Reason(
            "resent-often",
            f"{client['resent']:,} of {len(run.done):,} requests were sent twice, more than "
            f"{show_percent(RESENT_REASON, 1)}: {_how_it_closes(client)}",
        )


def _by_host(run: Evidence) -> Sequence[tuple[str, Evidence]]:
    """Returns each load host's part of the run with the host's name. Without load hosts, returns the whole run with an
    empty name.
    """
    return [*runs_of(run)] or [("", run)]


def _how_it_closes(client: Client) -> str:
    most = client["replies_per_connection"]
    if most is None:
        return "the server had just closed their connections, which it had not announced"
    return f"the server closes a connection after {counted(most, 'reply', 'replies')}, and does not announce it"


def _bound_by(run: Evidence, client: Client, completed_per_s: float | None) -> Iterator[str]:
    assert run.done is not None
    p99_ns, notice_ns = percentile_ns(np.sort(run.done.latency_ns), 0.99), client["notice_p99_ns"]
    all_at_once = scenario_named(run.plan.scenario).all_at_once
    if notice_ns is not None and notice_ns > NOTICE_REASON * p99_ns and not all_at_once:
        yield (
            f"1 % of the replies waited in the kernel for more than {show_ns(notice_ns)} before the "
            f"client read them, which is more than half of the latency's p99 ({show_ns(p99_ns)})"
        )
    yield from _stood_still(run)
    if (client["busy_seconds"] or 0) > BUSY_SECONDS_REASON:
        yield (
            f"the client's receiving thread was busy for more than {show_percent(BUSY_SECOND)} of the time in "
            f"{show_percent(client['busy_seconds'] or 0)} of the seconds"
        )
    closed = all_at_once or run.plan.concurrency is not None
    # After the run gives up the server, samples fail at once, so the rate of completions says nothing about the client.
    ceiling = None if client_told(run)["server_gone"] else client["ceiling_per_s"]
    if closed and ceiling and completed_per_s and completed_per_s > REACHED_REASON * ceiling:
        yield (
            f"{show_rate(completed_per_s)} samples/s are more than {show_percent(REACHED_REASON)} of the rate that this "
            f"client reaches against a server that answers at once ({show_rate(ceiling)})"
        )


def standstill_ns(run: Evidence) -> int:
    """Returns the longest time for which a client with a schedule issued nothing although a query was due; 0 without a
    server or a schedule.
    """
    done, scenario = run.done, scenario_named(run.plan.scenario)
    if not done or not done.is_remote or not scenario.scheduled:
        return 0
    entry_ns, due_ns = (np.sort(done.columns[name]) for name in ("entry_ns", "scheduled_ns"))
    before_ns = np.concatenate([due_ns[:1], entry_ns[:-1]])
    return int((entry_ns - np.maximum(due_ns, before_ns)).max())


def _stood_still(run: Evidence) -> Iterator[str]:
    assert run.done is not None
    stood_ns = standstill_ns(run)
    if stood_ns < STOOD_NS:
        return
    fraction = max(0.99, run.plan.percentile or 0)
    delay_ns = run.done.columns["entry_ns"] - run.done.columns["scheduled_ns"]
    late_ns, tail_ns = (
        percentile_ns(np.sort(ns), fraction) for ns in (delay_ns, run.done.latency_ns)
    )
    if late_ns > STOOD_REASON * tail_ns:
        yield (
            f"the client stood still for {show_ns(stood_ns)}: {show_percent(1 - fraction, 1)} of the queries were issued "
            f"more than {show_ns(late_ns)} after their scheduled time, which is more than half of the latency's p{fraction * 100:.10g} "
            f"({show_ns(tail_ns)})"
        )


def standstill_doubts(run: Evidence) -> Iterator[Reason]:
    """Yields a doubt if a client stood still for long, even if the percentiles do not show it."""
    for name, of_host in _by_host(run):
        stood_ns = standstill_ns(of_host)
        if stood_ns > STOOD_DOUBT_NS:
            yield Reason(
                "stalled",
                f"{f'load host {name}' if name else 'the client'} stood still for {show_ns(stood_ns)}: it issued nothing "
                "although queries were due",
            )


def local_servers(run: Evidence) -> list[str]:
    """Returns the addresses of the servers on this machine."""
    return [peer["url"] for peer in client_told(run).get("peers", ()) if peer["local"]]


def doubts(
    run: Evidence, bound_ns: int | None, about: Mapping[str, Any] | None = None
) -> Iterator[Reason]:
    """Yields doubts about the client and the server.

    bound_ns: the SLO's bound. about: the plug-in's description of the server.
    """
    client = section(run)
    done = run.done
    if client is None or not done:
        return
    for name, of_host in _by_host(run):
        own = section(of_host)
        if own is not None and of_host.done:
            for text in _nearly(of_host, own, bound_ns):
                yield Reason("client-busy", f"{name}: {text}" if name else text)
    scenario = scenario_named(run.plan.scenario)
    waited = client["waited"] / len(done)
    places = client["connections"] * len(client["peers"])
    # If --concurrency is not larger than the number of connections, a query waits only until the previous query's
    # connection is free again. Such waits do not limit the run.
    has_places = run.plan.concurrency is not None and run.plan.concurrency <= places
    if scenario.scheduled and not has_places and waited > WAITED_DOUBT:
        held = f"{show_percent(waited, 1)} of the requests waited"
        yield Reason(
            "few-connections",
            f"{held} for the nodes, which held as many as allowed ({client['connections']} requests each): they are the limit"
            if client_told(run).get("nodes")
            else f"{held} for a free connection of {client['connections']}: raise --connections, or the server is "
            "the limit",
        )
    yield from _server_doubts(client, percentile_ns(np.sort(done.latency_ns), 0.50))
    if (json_ns := client["json_ns"]) is not None:
        p50_ns = percentile_ns(np.sort(done.latency_ns), 0.50)
        yield Reason(
            "json-tensors",
            f"tensors are sent as JSON: the client encodes a request and decodes its reply in {show_ns(json_ns)}, "
            f"{show_percent(json_ns / max(p50_ns, 1))} of the latency's p50",
        )
    yield from token_counts.doubts(run, about)
    if local := local_servers(run):
        yield Reason(
            "loopback",
            f"{local[0]} is on this machine: client and server share its cores, and no network was crossed",
        )


def _server_doubts(client: Client, p50_ns: int) -> Iterator[Reason]:
    """Yields doubts about the server. p50_ns: median latency."""
    if client["resent"]:
        yield Reason(
            "resent",
            f"{counted(client['resent'], 'request')} sent twice: {_how_it_closes(client)}; their latency counts from "
            "the schedule",
        )
    if client["outage_s"] > OUTAGE_S:
        yield Reason(
            "server-away",
            f"a server accepted no connection for {show_ns(round(client['outage_s'] * NS_PER_S))}: it was "
            "unavailable or restarted, and the latencies include the wait for it",
        )
    if client["server_times"] is not None:
        for text in _odd_times(client["server_times"], p50_ns):
            yield Reason("server-times", text)


def _odd_times(told: ServerTimes, p50_ns: int) -> Iterator[str]:
    """Yields times that a server reports for a request but that are impossible. p50_ns: median latency."""
    total_ns, parts_ns = told["total_ns"], told["queue_ns"] + told["compute_ns"]
    said = f"the server reports that a request takes {show_ns(total_ns)}"
    if total_ns < LEAST_TOTAL_NS:
        yield f"{said}, which is too short to read and answer it; the median latency here is {show_ns(p50_ns)}"
    if parts_ns > TIMES_TOLERANCE * total_ns + LEAST_TOTAL_NS:
        yield f"{said}, but its queue and model alone take {show_ns(parts_ns)}"
    if total_ns > TIMES_TOLERANCE * p50_ns and told["source"] == "Server-Timing":
        yield f"{said} at the median, but the client measured {show_ns(p50_ns)} with the network"


def _nearly(run: Evidence, client: Client, bound_ns: int | None) -> Iterator[str]:
    assert run.done is not None
    notice_ns = client["notice_p99_ns"]
    scenario = scenario_named(run.plan.scenario)
    if notice_ns is not None and not scenario.all_at_once:
        p99_ns = percentile_ns(np.sort(run.done.latency_ns), 0.99)
        allowed = [NOTICE_DOUBT * ns for ns in (bound_ns, p99_ns) if ns]
        if notice_ns > min(allowed):
            yield (
                f"1 % of the replies waited in the kernel for more than {show_ns(notice_ns)} before the "
                f"client read them (p99 of the latency: {show_ns(p99_ns)})"
            )
    if (client["busy_max"] or 0) > BUSY_DOUBT:
        yield (
            f"the client's receiving thread was busy for {show_percent(client['busy_max'] or 0)} of its "
            "busiest second"
        )
    asked, ceiling = run.plan.target_qps, client["ceiling_per_s"]
    if scenario.scheduled and asked and ceiling and asked > ASKED_DOUBT * ceiling:
        yield (
            f"the run requests {show_rate(asked)} queries/s, and this client reaches {show_rate(ceiling)} "
            "against a server that answers at once"
        )
