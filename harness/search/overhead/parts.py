"""Computes the time that serving adds to a query in each pair of runs, with the parts and intervals of this time. Has no side effects."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.results.evidence.between_runs import mean_over

SEND = "encode and send"
NETWORK = "network and protocol"
SEND_AND_NETWORK = "send, network and protocol"
QUEUE = "server queue"
COMPUTE = "difference in compute"
REMOTE = "remote, in one part"
RECEIVE = "notice, decode, complete"
FLOOR = "floor"

LEAST_EXPLAINED = 0.90
"""A doubt is reported if the parts explain less than this share of the overhead."""


class Pair(NamedTuple):
    """An in-process run and a served run, made one after the other. The times are medians over queries."""

    in_process_ns: float
    served_ns: float
    floor_ns: float
    """Time for a request from this client to a null server, minus the time for the work that the client also does in
    process.
    """
    parts_ns: Mapping[str, float]
    """Time that each part adds; the value for `FLOOR` is negative. The parts are medians, so their sum is only
    approximately the overhead.
    """

    @property
    def overhead_ns(self) -> float:
        return self.served_ns - self.in_process_ns - self.floor_ns


def tells(served: Mapping[str, Any]) -> bool:
    """Returns whether the server reported its times. served: content of the served run's result.json."""
    return served["client"]["server_times"] is not None


def pair_of(in_process: Mapping[str, Any], served: Mapping[str, Any], *, reported: bool) -> Pair:
    """Compares two single-stream runs. in_process, served: contents of the runs' result.json. reported: whether to use the
    times that the server reported.
    """
    here, there = _medians(in_process), _medians(served)
    client = served["client"]
    # The floor also includes gathering data and completing answers. These two times are subtracted, because an
    # in-process run spends them as well.
    floor_ns = client["floor_p50_ns"] - _sum(here, "gather", "postprocess", "complete")
    parts = {
        SEND: _sum(there, "issue_delay", "queue", "send")
        - _sum(here, "issue_delay", "queue", "gather")
    }
    if reported:
        queue, compute = client["server_times"]["queue_ns"], client["server_times"]["compute_ns"]
        parts |= {
            NETWORK: there["remote"] - queue - compute,
            QUEUE: queue,
            COMPUTE: compute - here["infer"],
        }
    else:
        parts[REMOTE] = there["remote"] - here["infer"]
    parts[RECEIVE] = _sum(there, "notice", "decode", "complete") - _sum(
        here, "postprocess", "complete"
    )
    parts[FLOOR] = -floor_ns
    return Pair(
        in_process_ns=float(in_process["latency_ns"]["p50"]),
        served_ns=float(served["latency_ns"]["p50"]),
        floor_ns=float(floor_ns),
        parts_ns={name: float(ns) for name, ns in parts.items()},
    )


def _medians(result: Mapping[str, Any]) -> Mapping[str, float]:
    return {stage: times["p50"] for stage, times in result["stages_ns"].items()}


def _sum(medians: Mapping[str, float], *stages: str) -> float:
    """Sums the medians of the given stages. `notice` is missing if the kernel provides no timestamps."""
    return sum(medians.get(stage, 0) for stage in stages)


class Mean(NamedTuple):
    """Mean over the pairs in ns, with its 95 % interval; the interval is None for a single pair."""

    mean_ns: float
    low_ns: float | None
    high_ns: float | None


def mean_of(values: Sequence[float]) -> Mean:
    """Computes the mean over pairs with Student's t interval.
    values: at least one value; negative values are allowed.
    """
    array = np.array(values, np.float64)
    low, high = mean_over(array) or (None, None)
    return Mean(float(array.mean()), low, high)


class Overhead(NamedTuple):
    """Time that serving adds to a query, with its parts."""

    overhead: Mean
    in_process: Mean
    served: Mean
    parts: Mapping[str, Mean]
    of_model: float
    """Overhead as a multiple of the in-process time."""
    explained: float
    """1 minus the relative difference between the sum of the parts and the overhead. For example, `explained` is 0.9 if
    the sum is 1.1 times the overhead.
    """


def _merged(parts: Mapping[str, float]) -> Mapping[str, float]:
    """Merges sending and network into one part.

    A server on this machine may take over the sender's core and answer before the sender takes its timestamp. The
    server's time would then count as `send`.
    """
    others = {name: ns for name, ns in parts.items() if name not in (SEND, NETWORK)}
    return {SEND_AND_NETWORK: parts[SEND] + parts[NETWORK], **others}


def overhead_of(pairs: Sequence[Pair]) -> Overhead:
    """Computes the means over the pairs. pairs: at least one, all with the same parts."""
    each = [pair.parts_ns for pair in pairs]
    if any(parts.get(NETWORK, 0) < 0 for parts in each):
        each = [_merged(parts) for parts in each]
    overhead = mean_of([pair.overhead_ns for pair in pairs])
    in_process = mean_of([pair.in_process_ns for pair in pairs])
    parts = {name: mean_of([parts[name] for parts in each]) for name in each[0]}
    gap_ns = abs(sum(part.mean_ns for part in parts.values()) - overhead.mean_ns)
    size_ns = abs(overhead.mean_ns)
    return Overhead(
        overhead=overhead,
        in_process=in_process,
        served=mean_of([pair.served_ns for pair in pairs]),
        parts=parts,
        of_model=overhead.mean_ns / in_process.mean_ns,
        explained=max(0.0, 1 - gap_ns / size_ns) if size_ns else float(gap_ns == 0),
    )
