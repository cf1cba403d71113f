"""Shows a run's nodes as a table, with notes on lost and slow nodes."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.units import show_ns
from harness.results.pages.tables import Column, Table

_COLUMNS = (
    Column("node"),
    Column("machine"),
    Column("samples/s", "count"),
    Column("of all", "share"),
    Column("of batches", "share"),
    Column("failed", "count"),
    Column("infer p50", "ns"),
    Column("p99", "ns"),
    Column("in its queue p50", "ns"),
    Column("network p50", "ns"),
    Column("clock ahead", "ns"),
    Column("+-", "ns"),
    Column("CPU busy", "share"),
)


def node_table(result: Mapping[str, Any]) -> Table | None:
    """Returns the table; None without --nodes."""
    nodes = result.get("nodes")
    if not nodes:
        return None
    samples = sum(node["samples"] for node in nodes)
    batches = sum(node.get("batches") or 0 for node in nodes)
    rows = [
        (
            node["node"],
            node["machine"],
            _rate(node["completed_per_s"]),
            node["samples"] / samples if samples else None,
            node["batches"] / batches if batches else None,
            f"{node['failed']:,}",
            node["infer_p50_ns"],
            node["infer_p99_ns"],
            node.get("queue_p50_ns"),
            node["network_p50_ns"],
            node["clock_offset_ns"],
            node["clock_error_ns"],
            _busy(node.get("host")),
        )
        for node in nodes
    ]
    about = "The work of each node. The times of its stages are measured with the node's own clock."
    return Table("nodes_of_run", "Nodes", about, _COLUMNS, rows, tuple(_notes(result)))


def _rate(per_s: float | None) -> str | None:
    return f"{per_s:,.0f}" if per_s is not None else None


def _busy(host: Mapping[str, Any] | None) -> float | None:
    """Returns the share of the time for which the machine's cores were busy, averaged over all cores."""
    shares = (host or {}).get("cpu_shares")
    return 1 - shares.get("idle", 0.0) - shares.get("iowait", 0.0) if shares else None


def _notes(result: Mapping[str, Any]) -> Iterator[str]:
    for node in result["nodes"]:
        if node["lost"]:
            yield f"{node['node']} was lost with {node['lost_samples']:,} samples: {node['lost']}."
        elif node["no_journal"]:
            yield f"{node['node']} sent no journal: {node['no_journal']}."
        if node.get("no_host"):
            yield f"{node['node']} reported nothing about its machine: {node['no_host']}."
        if node.get("clock_step_ns"):
            yield f"The clock of {node['node']} was set by {show_ns(node['clock_step_ns'])} in the run."
    for doubt in result["doubts"]:
        if doubt["code"] == "node-slower":
            yield f"{doubt['text']}."
