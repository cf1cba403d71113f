"""Summarises each node's part in a run, and yields reasons and doubts about the nodes. Has no side effects."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

import numpy as np

from harness.core.codes import Reason
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_S, show_ns
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import NODE_STAMPS
from harness.results.schema.nodes import Node
from harness.types import Array

SLOWER = 1.2
"""The run gets a doubt about a slow node if the node's time in the model is at least this multiple of the nodes'
median.
"""

DRIFT_PPM = 100.0
"""Maximum tolerated drift of a node's clock relative to the driver's, in ppm. If a clock drifts more than this, the run
gets a doubt. Equals `SLEW_PPM`.
"""


def told(run: Evidence) -> Sequence[Mapping[str, Any]]:
    """Returns `nodes` from the measured process's last message; empty if no node answered."""
    client = (run.ended or {}).get("client") or {}
    nodes: Sequence[Mapping[str, Any]] = client.get("nodes") or ()
    return nodes


def section(run: Evidence) -> Sequence[Node]:
    """Returns the section of result.json, in the order of --nodes; empty if no node answered."""
    return [_node(run, number, about) for number, about in enumerate(told(run))]


def _node(run: Evidence, number: int, about: Mapping[str, Any]) -> Node:
    facts, clock = about["facts"], about["clock"]
    columns = _of_node(run, number)
    count = len(columns["failed"]) if columns else 0
    failed = int((columns["failed"] > 0).sum()) if columns else 0
    infer = _spent_ns(columns, "gathered_ns", "inferred_ns")
    network = _spent_ns(columns, "sent_ns", NODE_STAMPS[0])
    queue = _spent_ns(columns, *NODE_STAMPS[:2])
    return {
        "node": about["node"],
        "machine": facts["machine"],
        "instances": facts["instances"],
        "threads": facts["threads"],
        "max_batch": facts["max_batch"],
        "cpus": facts["cpus"],
        "rate_per_s": facts["rate_per_s"],
        "samples": count,
        "batches": len(np.unique(columns["batch"])) if columns else 0,
        "failed": failed,
        "completed_per_s": _completed_per_s(run, columns, count - failed),
        "infer_p50_ns": percentile_ns(infer, 0.5) if len(infer) else None,
        "infer_p99_ns": percentile_ns(infer, 0.99) if len(infer) else None,
        "queue_p50_ns": percentile_ns(queue, 0.5) if len(queue) else None,
        "network_p50_ns": percentile_ns(network, 0.5) if len(network) else None,
        "clock_offset_ns": clock["offset_ns"] if clock else None,
        "clock_error_ns": clock["error_ns"] if clock else None,
        "drift_ppm": about["drift_ppm"],
        "clock_step_ns": about.get("step_ns"),
        "stage_error_ns": about.get("stage_error_ns"),
        "lost": about["lost"],
        "lost_samples": about["lost_samples"],
        "no_journal": about["no_journal"],
        "host": about.get("host"),
        "no_host": about.get("no_host", ""),
    }


def _of_node(run: Evidence, number: int) -> Mapping[str, Array]:
    """Returns the columns of a node's samples; empty if the node had no samples."""
    if not run.done:
        return {}
    columns = run.done.columns
    server = columns.get("server")
    if server is None:  # the column is missing if all samples went to the first node
        return columns if number == 0 else {}
    mine = server == number
    return {name: values[mine] for name, values in columns.items()} if mine.any() else {}


def _spent_ns(columns: Mapping[str, Array], begin: str, end: str) -> Array:
    """Returns the durations in ns of the batches that did not fail, ascending."""
    if NODE_STAMPS[0] not in columns:
        return np.zeros(0, np.int64)
    _, first = np.unique(columns["batch"], return_index=True)
    whole = first[columns["failed"][first] == 0]
    return np.sort((columns[end] - columns[begin])[whole])


def _completed_per_s(run: Evidence, columns: Mapping[str, Array], answered: int) -> float | None:
    if not answered or run.done is None:
        return None
    whole = columns["failed"] == 0
    took_ns = int(columns["completed_ns"][whole].max()) - int(
        run.done.columns["scheduled_ns"].min()
    )
    return answered * NS_PER_S / took_ns if took_ns > 0 else None


def no_score(performance: Evidence | None) -> str:
    """Returns why the accuracy run is skipped, which happens if the run would wait for a lost node. Returns '' if no
    node was lost.
    """
    lost = [about["node"] for about in told(performance) if about["lost"]] if performance else ()
    return f"the performance run lost {', '.join(lost)}" if lost else ""


def reasons(run: Evidence) -> Iterator[Reason]:
    """Yields a reason for each lost node."""
    samples = len(run.done) if run.done is not None else 0
    for about in told(run):
        if about["lost"]:
            yield Reason(
                "node-lost",
                f"{about['node']} was lost with {about['lost_samples']:,} of {samples:,} samples ({about['lost']}); no sample "
                "was sent again to another node",
            )


def doubts(run: Evidence) -> Iterator[Reason]:
    nodes = section(run)
    known = [node["infer_p50_ns"] for node in nodes if node["infer_p50_ns"] is not None]
    if len(known) > 1:
        middle_ns = median(known)
        for node in nodes:
            spent_ns = node["infer_p50_ns"]
            if spent_ns is not None and spent_ns > SLOWER * middle_ns:
                yield Reason(
                    "node-slower",
                    f"{node['node']} ({node['machine']}) takes {show_ns(spent_ns)} for a batch at p50, but the median of "
                    f"the nodes is {show_ns(int(middle_ns))}",
                )
    if any(about.get("transport") == "actor" for about in told(run)):
        ways_ns = [node["network_p50_ns"] for node in nodes if node["network_p50_ns"] is not None]
        took = f", {show_ns(max(ways_ns))} for the transfer of one batch at p50" if ways_ns else ""
        yield Reason(
            "ray-calls", f"batches were sent in Ray calls{took}, which is part of the latency"
        )
    for node, about in zip(nodes, told(run), strict=True):
        drift, error = about["drift_ppm"], about["drift_error_ppm"]
        if node["clock_step_ns"]:
            yield Reason(
                "node-clock",
                f"the clock of {node['node']} was set by {show_ns(node['clock_step_ns'])} in the run: the stages of the "
                "batches on this node at that time are wrong by the same amount",
            )
        elif drift is not None and abs(drift) - error > DRIFT_PPM:
            yield Reason(
                "node-clock",
                f"the clock of {node['node']} ran {drift:+.0f} ppm (error {error:.0f}) relative to this machine's clock: its "
                "stages are wrong by the same amount",
            )
        if node["no_journal"] and node["samples"] > node["failed"]:
            yield Reason(
                "node-journal",
                f"{node['node']}: {node['no_journal']}; the stages of all nodes are reported as one, `remote`",
            )
