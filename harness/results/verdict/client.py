"""Judges whether the client, not the server, limited a run, and what happened to its requests. Pure."""

from collections.abc import Iterator

import numpy as np

from harness.core.codes import Reason
from harness.core.stats import percentile_ns
from harness.core.units import show_ns, show_percent, show_rate
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Client

NOTICE_DOUBT = 0.10
NOTICE_REASON = 0.50
"""Shares of the latency's p99 (the doubt: also of the SLO's bound) that the stage `notice` has at its p99."""

BUSY_DOUBT = 0.70
BUSY_SECOND = 0.95
BUSY_SECONDS_REASON = 0.10
"""The receiving thread's busiest second, a second that is full, and the share of such seconds."""

ASKED_DOUBT = 0.50
REACHED_REASON = 0.80
"""Shares of the ceiling: of a Server's rate, and of what Offline or a closed loop reached."""

WAITED_DOUBT = 0.001
RESENT_REASON = 0.001


def section(run: Evidence) -> Client | None:
    """The section of result.json; None where no server answered, or the run did not end by itself."""
    told = run.ended.get("client") if run.ended is not None else None
    if told is None:
        return None
    shares = told["busy_shares"]
    full = sum(share > BUSY_SECOND for share in shares)
    return {
        "peers": told["peers"],
        "connections": told["connections"],
        "dispatcher": told["dispatcher"],
        "request_timeout_s": told["request_timeout_s"],
        "ceiling_per_s": told["ceiling_per_s"],
        "floor_p50_ns": told["floor_p50_ns"],
        "no_ceiling": told["no_ceiling"],
        "busy_max": max(shares) if shares else None,
        "busy_seconds": full / len(shares) if shares else None,
        "notice_p99_ns": _notice_p99_ns(run),
        "waited": told["waited"],
        "resent": told["resent"],
        "reopened": told["reopened"],
        "failures": told["failures"],
        "server_times": told["server_times"],
    }


def _notice_p99_ns(run: Evidence) -> int | None:
    done = run.done
    if done is None or not len(done) or "notice" not in done.edges:
        return None
    begin, end = done.edges["notice"]
    return percentile_ns(np.sort(done.columns[end] - done.columns[begin]), 0.99)


def reasons(run: Evidence, completed_per_s: float | None) -> Iterator[Reason]:
    """completed_per_s: samples/s of the performance run."""
    client = section(run)
    if client is None or run.done is None or not len(run.done):
        return
    for text in _bound_by(run, client, completed_per_s):
        yield Reason("client-bound", text)
    if client["resent"] > RESENT_REASON * len(run.done):
        yield Reason(
            "resent-often",
            f"{client['resent']:,} of {len(run.done):,} requests were sent twice, more than "
            f"{show_percent(RESENT_REASON, 1)}: the server closes connections that are in use",
        )


def _bound_by(run: Evidence, client: Client, completed_per_s: float | None) -> Iterator[str]:
    assert run.done is not None
    p99_ns, notice_ns = percentile_ns(np.sort(run.done.latency_ns), 0.99), client["notice_p99_ns"]
    all_at_once = scenario_named(run.plan.scenario).all_at_once
    if notice_ns is not None and notice_ns > NOTICE_REASON * p99_ns and not all_at_once:
        yield (
            f"1 % of the replies lay in the kernel for more than {show_ns(notice_ns)} before the client "
            f"read them, more than half of the latency's p99 ({show_ns(p99_ns)})"
        )
    if (client["busy_seconds"] or 0) > BUSY_SECONDS_REASON:
        yield (
            f"the client's receiving thread was busy for more than {show_percent(BUSY_SECOND)} of the time in "
            f"{show_percent(client['busy_seconds'] or 0)} of the seconds"
        )
    closed = all_at_once or run.plan.concurrency is not None
    ceiling = client["ceiling_per_s"]
    if closed and ceiling and completed_per_s and completed_per_s > REACHED_REASON * ceiling:
        yield (
            f"{show_rate(completed_per_s)} samples/s are more than {show_percent(REACHED_REASON)} of what this "
            f"client reaches against a server that answers at once ({show_rate(ceiling)})"
        )


def doubts(run: Evidence, bound_ns: int | None) -> Iterator[Reason]:
    """bound_ns: the SLO's bound."""
    client = section(run)
    done = run.done
    if client is None or done is None or not len(done):
        return
    for text in _nearly(run, client, bound_ns):
        yield Reason("client-busy", text)
    scenario = scenario_named(run.plan.scenario)
    waited = client["waited"] / len(done)
    if scenario.scheduled and run.plan.concurrency is None and waited > WAITED_DOUBT:
        yield Reason(
            "few-connections",
            f"{show_percent(waited, 1)} of the requests waited for a free connection of "
            f"{client['connections']}: raise --connections, or the server is the limit",
        )
    if client["resent"]:
        yield Reason(
            "resent",
            f"{client['resent']:,} requests were sent twice, because the server had just closed their "
            "connection; their latency counts from the schedule",
        )
    local = [peer["url"] for peer in client["peers"] if peer["local"]]
    if local:
        yield Reason(
            "loopback",
            f"{local[0]} is on this machine: client and server share its cores, and no network was crossed",
        )


def _nearly(run: Evidence, client: Client, bound_ns: int | None) -> Iterator[str]:
    assert run.done is not None
    notice_ns = client["notice_p99_ns"]
    scenario = scenario_named(run.plan.scenario)
    if notice_ns is not None and not scenario.all_at_once:
        p99_ns = percentile_ns(np.sort(run.done.latency_ns), 0.99)
        allowed = [NOTICE_DOUBT * ns for ns in (bound_ns, p99_ns) if ns]
        if notice_ns > min(allowed):
            yield (
                f"1 % of the replies lay in the kernel for more than {show_ns(notice_ns)} before the client "
                f"read them (p99 of the latency: {show_ns(p99_ns)})"
            )
    if (client["busy_max"] or 0) > BUSY_DOUBT:
        yield (
            f"the client's receiving thread was busy for {show_percent(client['busy_max'] or 0)} of its "
            "busiest second"
        )
    asked, ceiling = run.plan.target_qps, client["ceiling_per_s"]
    if scenario.scheduled and asked and ceiling and asked > ASKED_DOUBT * ceiling:
        yield (
            f"{show_rate(asked)} queries/s were asked for, and this client reaches {show_rate(ceiling)} "
            "against a server that answers at once"
        )
