"""Finds backends that waited instead of computing, from the CPU time of their batches."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.units import show_percent

LEAST_BUSY = 0.25
"""A backend whose CPU time is below this share of its batches' time waited instead of computing. A backend that sleeps
1 ms per batch stays below 0.1. A computing backend reaches about 1 per thread, even if other programs take its cores.
"""

WAITED = "its backend waited instead of computing"


def waited(
    process: Mapping[str, Any] | None,
    stages_ns: Mapping[str, Any] | None,
    queries: Mapping[str, Any] | None,
) -> Iterator[str]:
    """Yields the reason if this run's backend did not compute. The arguments are sections of result.json."""
    busy = busy_over_infer(process, stages_ns, queries)
    if busy is not None and busy < LEAST_BUSY:
        yield (
            f"{WAITED}: it computed or waited for a core for {show_percent(busy, 1)} of its batches' time "
            "(declare an accelerator with accelerators_per_node; if a server computes, let the backend start it)"
        )


def busy_over_infer(
    process: Mapping[str, Any] | None,
    stages_ns: Mapping[str, Any] | None,
    queries: Mapping[str, Any] | None,
) -> float | None:
    """Returns the time in which the batches occupied a core or waited for one, divided by their time in the backend.
    The ratio is 1 per busy thread. If the kernel does not report the waiting time, returns an estimate without it, or
    None.
    """
    if process and process.get("busy_over_infer") is not None:
        return float(process["busy_over_infer"])
    if stages_ns and "network" in stages_ns:  # the model ran on nodes, whose CPU time is unknown
        return None
    if not (process and stages_ns and "infer" in stages_ns and queries and queries["mean_batch"]):
        return None
    sample_s = process["cpu_s_per_query"] / queries["samples_per_query"]
    batch_s = stages_ns["infer"]["p50"] / 1e9
    return float(sample_s * queries["mean_batch"] / batch_s) if batch_s else None
