"""Computes the points in a live page's charts from two or more snapshots of a run's metrics. Contains only pure
functions.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.core.config.parse import parse_slos
from harness.core.units import NS_PER_S
from harness.loadgen.scenario import scenario_named
from harness.results.evidence.stages import waits_of_all
from harness.run.supervisor.metrics.course import Buckets, Snapshot, Totals, bounds_of
from harness.run.supervisor.metrics.histogram import Histogram
from harness.run.supervisor.metrics.live_counts import EDGES_NS

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}

LEAST = 100
"""A p99 is computed from at least this many latencies. Recent snapshots are combined until they contain this many
latencies.
"""

CORES_LOOKS = 3
"""The use of the cores is averaged over this many periods between snapshots."""

Series = Mapping[str, float]


class Chart(NamedTuple):
    """A chart on a live page. The page shows the chart as soon as a point contains a value for it."""

    name: str
    """Key of the chart's values within a point."""
    title: str
    unit: str
    """Unit of the values. Times are in s, but the page shows short times in ms or us."""
    is_stacked: bool = False
    is_log: bool = False
    """Whether the axis is logarithmic, so that one spike does not squeeze the usual values together."""
    is_first: bool = False
    """Whether the page shows the chart before it has values, because most runs have them."""


CHARTS = (
    Chart("rate", "Rate", "answers/s", is_first=True),
    Chart(
        "latency", f"Latency, last second or last {LEAST} queries", "s", is_log=True, is_first=True
    ),
    Chart("queue", "In flight and waiting", "samples", is_first=True),
    Chart("stages", "Mean time of a sample by stage", "s", is_stacked=True, is_first=True),
    Chart("cores", f"CPU use, mean of {CORES_LOOKS} s", "cores", is_stacked=True, is_first=True),
    Chart("tokens", "Token rate", "tokens/s"),
    Chart("token_times", f"Token times, last second or last {LEAST} answers", "s", is_log=True),
    Chart("nodes", "Answers by node", "samples/s", is_stacked=True),
    Chart("watts", "Power", "W"),
)


_MEANS = ("rate", "latency", "stages", "tokens", "token_times", "nodes")
"""Charts whose values cover a period, not a moment."""


def begin_of(first: Snapshot) -> Snapshot | None:
    """Returns the state at the phase's first query, before any answer; None if nothing is answered yet.

    first: a later snapshot in the phase. The machine's counters are unknown in this state, because they do not start
    with the phase.
    """
    if not first.elapsed_s:
        return None
    zero = Totals(
        latency=(),
        token_times={},
        tokens=0.0,
        stages={},
        nodes=dict.fromkeys(first.totals.nodes, 0.0),
        run_cpu_s=None,
        busy_s=None,
        stolen_s=None,
        waiting=None,
        watts={},
        bounds_s=(),
        token_bounds_s=(),
    )
    at_s = first.at_s - first.elapsed_s
    in_flight = first.in_flight + first.completed if first.counts_samples else 0.0
    return first._replace(at_s=at_s, completed=0.0, failed=0.0, in_flight=in_flight, totals=zero)


def opening(recent: Sequence[Snapshot], origin_s: float) -> dict[str, Any]:
    """Returns the first snapshot's point, with the means over the time until the second snapshot. A curve of means then
    covers the whole time.
    """
    own, later = point(recent[:1], origin_s), point(recent[:2], origin_s)
    means = {name: series for name, series in later["charts"].items() if name in _MEANS}
    return {**own, "charts": {**own["charts"], **means}}


def closing(recent: Sequence[Snapshot], origin_s: float) -> dict[str, Any]:
    """Returns the point of the last answer, without means, which a short time since the previous snapshot would distort."""
    made = point(recent, origin_s)
    return {**made, "charts": {name: s for name, s in made["charts"].items() if name not in _MEANS}}


def point(recent: Sequence[Snapshot], origin_s: float) -> dict[str, Any]:
    """Returns the chart values for the time since the previous snapshot.

    recent: snapshots of one phase in one run, oldest first. The last snapshot shows the current state. origin_s: the
    page's time 0, on the same clock as `Snapshot.at_s`. `t` is in seconds. `charts` and `bounds` map a chart and a
    series to a value, for each chart with values.
    """
    now = recent[-1]
    before = recent[-2] if len(recent) > 1 else None
    totals = now.totals
    charts: dict[str, Series] = {
        "queue": _known({"in flight": now.in_flight, "waiting": totals.waiting})
    }
    charts["watts"] = _known(totals.watts)
    if before is not None:
        charts |= _between(before, now)
        charts["cores"] = _cores(recent)
        if not now.counts_samples:
            charts["latency"] = _recent_percentiles([one.totals.latency for one in recent])
        charts["token_times"] = dict(_token_times([one.totals for one in recent]))
    bounds = {"latency": dict(totals.bounds_s), "token_times": dict(totals.token_bounds_s)}
    return {
        "t": round(now.at_s - origin_s, 3),
        "charts": {name: series for name, series in charts.items() if series},
        "bounds": {name: series for name, series in bounds.items() if series},
    }


def point_of_ended(result: Mapping[str, Any], begin_s: float) -> dict[str, Any]:
    """Returns the final numbers of a run that could not be watched as one point, which the charts draw as a dot.

    result: content of result.json. begin_s: time of the point in the charts.
    """
    rates, tokens = result.get("throughput_per_s") or {}, result.get("tokens") or {}
    # The latency of samples that are issued all at once shows only their number.
    is_all_at_once = scenario_named(result["scenario"]).all_at_once
    times_s = final_times_s(result)

    def times(*kinds: str) -> Series:
        return _known(
            {
                f"{kind.upper()} {name}".lstrip(): times_s[kind].get(name)
                for kind in kinds
                for name in PERCENTILES
            }
        )

    bounds = zip(
        ("latency", "token_times"), bounds_of(parse_slos(result.get("slo") or "")), strict=True
    )
    charts = {
        "rate": _known({"answered": final_rate(result), "requested": rates.get("asked")}),
        "latency": {} if is_all_at_once else times(""),
        "tokens": _known({"answered": tokens.get("output_per_s")}),
        "token_times": times("ttft", "tpot"),
    }
    return {
        "t": round(begin_s, 3),
        "charts": {name: series for name, series in charts.items() if series},
        "bounds": {name: dict(series) for name, series in bounds if series},
        "is_final": True,
    }


def final_rate(result: Mapping[str, Any]) -> float | None:
    """Returns the completed rate in a result.json, in queries/s (in Offline samples/s), as in a snapshot; None if unknown."""
    completed: float | None = (result.get("throughput_per_s") or {}).get("completed")
    if completed is None or not scenario_named(result["scenario"]).by_query:
        return completed
    return completed / ((result.get("queries") or {}).get("samples_per_query") or 1)


def final_times_s(result: Mapping[str, Any]) -> Mapping[str, Series]:
    """Returns the percentiles, in s, of the query latency ('') and of the token times in a result.json."""
    tokens = result.get("tokens") or {}
    times_ns = {"": result.get("latency_ns") or {}}
    times_ns |= {kind: tokens.get(f"{kind}_ns") or {} for kind in ("ttft", "tpot", "itl")}
    return {
        kind: {
            name: value / NS_PER_S
            for name, value in found.items()
            if isinstance(value, int | float)
        }
        for kind, found in times_ns.items()
    }


def _between(before: Snapshot, now: Snapshot) -> dict[str, Series]:
    """Returns rates and means over the time between two snapshots."""
    seconds = max(now.at_s - before.at_s, 1e-3)
    one, two = before.totals, now.totals
    waits = waits_of_all(now.scenario) if now.counts_samples else ()

    def rate(first: float | None, second: float | None) -> float | None:
        return _rate(first, second, seconds)

    return {
        "rate": _known(
            {
                "answered": rate(before.completed, now.completed),
                "requested": now.offered,
                "failed": rate(before.failed, now.failed) if now.failed else None,
            }
        ),
        "stages": _known(dict(_stage_means(one, two, waits))),
        "tokens": _known({"answered": rate(one.tokens, two.tokens) if two.tokens else None}),
        "nodes": _known({node: rate(one.nodes.get(node), n) for node, n in two.nodes.items()}),
    }


def _cores(recent: Sequence[Snapshot]) -> Series:
    """Returns how many cores each user occupied over the last CORES_LOOKS snapshots.

    A run reads the machine's counters once per second, so zero or two of these readings may fall between two snapshots.
    If the sum over the users exceeds the machine's cores, the sum is scaled down. A missing reading leaves a gap,
    because the users' curves are stacked.
    """
    now = recent[-1]
    before = next((one for one in recent[-CORES_LOOKS - 1 : -1] if _has_cores(one.totals)), None)
    if before is None or not _has_cores(now.totals):
        return {}
    one, two, seconds = before.totals, now.totals, max(now.at_s - before.at_s, 1e-3)
    run, busy = _rate(one.run_cpu_s, two.run_cpu_s, seconds), _rate(one.busy_s, two.busy_s, seconds)
    assert run is not None
    assert busy is not None
    users = {
        "measured process": run,
        "other programs": max(busy - run, 0.0),
        "taken by the host": _rate(one.stolen_s, two.stolen_s, seconds),
    }
    whole = sum(filter(None, users.values()))
    # The sum of these values may be too large, because the readings may lie farther apart than the snapshots.
    scale = min(1.0, now.totals.cores / whole) if now.totals.cores and whole else 1.0
    return _known({name: None if v is None else v * scale for name, v in users.items()})


def _has_cores(totals: Totals) -> bool:
    return totals.run_cpu_s is not None and totals.busy_s is not None


def _rate(first: float | None, second: float | None, seconds: float) -> float | None:
    """Returns a counter's growth per s; None if either value is unknown."""
    return None if first is None or second is None else max(second - first, 0.0) / seconds


def _stage_means(one: Totals, two: Totals, waits: Collection[str]) -> Iterator[tuple[str, float]]:
    """waits: stages that are left out, as on the page of the finished run, because a sample only waits in them."""
    for stage, (total, count) in two.stages.items():
        total_before, count_before = one.stages.get(stage, (0.0, 0.0))
        if count > count_before and stage not in waits:
            yield stage, max(total - total_before, 0.0) / (count - count_before)


def _token_times(recent: Sequence[Totals]) -> Iterator[tuple[str, float]]:
    for kind in recent[-1].token_times:
        found = _recent_percentiles([one.token_times.get(kind, ()) for one in recent])
        yield from ((f"{kind.upper()} {name}", value_s) for name, value_s in found.items())


def _recent_percentiles(snapshots: Sequence[Buckets]) -> Series:
    """Returns percentiles of the values since the latest snapshot that is followed by at least LEAST values, or,
    without such a snapshot, since the first snapshot.

    Omits percentiles that need more values, such as a p99 of fewer than 100 values.
    """
    now, begin = snapshots[-1], snapshots[0]
    for before in reversed(snapshots[:-1]):
        if sum(now) - sum(before) >= LEAST:
            begin = before
            break
    between = _histogram(now, begin)
    enough = {
        n: share for n, share in PERCENTILES.items() if between.total * (1 - share) >= 1 - 1e-9
    }
    return _known({name: _seconds(between.quantile(share)) for name, share in enough.items()})


def quantile_s(buckets: Buckets, share: float) -> float | None:
    """Estimates a percentile in s within one bucket; None without values. share: in (0, 1)."""
    return _seconds(_histogram(buckets, ()).quantile(share))


def _seconds(value_ns: float | None) -> float | None:
    return None if value_ns is None else value_ns / NS_PER_S


def _histogram(now: Buckets, begin: Buckets) -> Histogram:
    """Returns a histogram of the values between two snapshots."""
    between = Histogram(EDGES_NS)
    for buckets, sign in ((now, 1), (begin, -1)):
        if buckets:
            between.counts += sign * np.array(buckets, np.int64)
    between.counts = np.maximum(between.counts, 0)  # the answer may come from a different program
    return between


def _known(series: Mapping[str, float | None]) -> Series:
    """Returns the known values, rounded to four digits. A chart cannot show more digits."""
    return {name: float(f"{v:.4g}") for name, v in series.items() if v is not None}
