"""Shows a run's load hosts as a table."""

from collections.abc import Mapping
from typing import Any

from harness.core.units import show_ns
from harness.results.pages.tables import Column, Table

_COLUMNS = (
    Column("host"),
    Column("queries", "count"),
    Column("answered", "count"),
    Column("queries/s", "count"),
    Column("p50", "ns"),
    Column("p99", "ns"),
    Column("start skew", "ns"),
    Column("busiest second", "share"),
)


def host_table(result: Mapping[str, Any]) -> Table | None:
    """Returns the table; None without --load-hosts."""
    hosts = result.get("load_hosts")
    if not hosts:
        return None
    rows = [
        (
            host["name"],
            f"{host['queries']:,}",
            f"{host['answered']:,}",
            f"{host['per_s']:,.0f}" if host["per_s"] is not None else None,
            host["p50_ns"],
            host["p99_ns"],
            host["start_skew_ns"],
            host["busy_max"],
        )
        for host in hosts
    ]
    about = "The load of each host. The percentiles of the run come from all latencies together, not from these rows."
    return Table("load_hosts", "Load hosts", about, _COLUMNS, rows, tuple(_notes(result)))


def _notes(result: Mapping[str, Any]) -> list[str]:
    worst_ns = max(host["clock_error_ns"] for host in result["load_hosts"])
    lost = [f"{h['name']} was lost: {h['lost']}." for h in result["load_hosts"] if h["lost"]]
    if not worst_ns:
        return lost
    known = f"The hosts' clocks are known within {show_ns(worst_ns)}"
    return [f"{known}: a host's stream may be shifted by that much, but no latency is.", *lost]
