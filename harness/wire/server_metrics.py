"""Reads the servers' Prometheus metrics once a second, with common names for vLLM and Triton."""

import math
import re
from collections.abc import Mapping, Sequence

from harness.core.clock import wall_ns
from harness.errors import HarnessError, type_and_text
from harness.remote import Request
from harness.wire.connections import LateReply, Server
from harness.wire.remote_backend import Link

PERIOD_S = 1.0
TIMEOUT_S = 2.0
"""Time limit of one reading. The run does not wait for it."""

GAUGES: Mapping[str, tuple[str, ...]] = {
    "running_requests": ("vllm:num_requests_running",),
    "waiting_requests": ("vllm:num_requests_waiting", "nv_inference_pending_request_count"),
    "kv_cache_share": ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    "gpu_share": ("nv_gpu_utilization",),
}
COUNTERS: Mapping[str, tuple[str, ...]] = {
    "answered_requests": ("vllm:request_success_total", "nv_inference_request_success"),
    "prompt_tokens": ("vllm:prompt_tokens_total",),
    "generated_tokens": ("vllm:generation_tokens_total",),
    "cached_tokens": ("vllm:prefix_cache_hits_total",),
    "preemptions": ("vllm:num_preemptions_total",),
    "inferences": ("nv_inference_count",),
    "executions": ("nv_inference_exec_count",),
}
"""Column of server.csv -> the servers' names for it. Values of several models, engines and servers are added."""
SHARES = ("kv_cache_share", "gpu_share")
"""Columns whose values are not added: the largest value counts."""

NO_PAGE = "gRPC has no page of metrics: give its address with --server-metrics"

_COLUMNS = {name: column for column, names in {**GAUGES, **COUNTERS}.items() for name in names}
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{.*\})? +([^ ]+)(?: +-?\d+)?")
_OK = 200


def parse(text: str) -> dict[str, float]:
    """Returns values by column; skips all other metrics. Raises a ValueError if a value is not a number."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line.strip())
        column = _COLUMNS.get(sample[1]) if sample else None
        if sample and column is not None and math.isfinite(value := float(sample[2])):
            _add(found, column, value)
    return found


def _add(row: dict[str, float], column: str, value: float) -> None:
    if column in SHARES:
        row[column] = max(row.get(column, 0.0), value)
    else:
        row[column] = row.get(column, 0.0) + value


class ServerMetrics:
    """Adds a row to `rows` with each `look`, on one thread.

    absent: why there are no rows; empty if there are rows. If the first reading fails, the servers are not read again.
    If a later reading fails, its row is left out.
    """

    def __init__(self, servers: Sequence[Server]) -> None:
        self.rows: list[dict[str, float]] = []
        self.absent = "" if servers else NO_PAGE
        self._links = [Link(server, TIMEOUT_S, option="") for server in servers]

    def look(self) -> None:
        if self.absent:
            return
        row: dict[str, float] = {}
        for link in self._links:
            try:
                found = _read(link)
            except (HarnessError, OSError, ValueError) as e:
                if not self.rows:
                    self.absent = f"{link.server.address}: {_described(e)}"
                return
            for column, value in found.items():
                _add(row, column, value)
        self.rows.append({"wall_ns": wall_ns(), **row})

    def close(self) -> None:
        for link in self._links:
            link.close()


def _described(error: Exception) -> str:
    if isinstance(error, LateReply):
        return f"no reply within {TIMEOUT_S:g} s"
    return str(error) if isinstance(error, _Unusable | HarnessError) else type_and_text(error)


class _Unusable(ValueError):
    """A reply without the metrics."""


def _read(link: Link) -> dict[str, float]:
    reply = link.exchange(Request("", method="GET"))
    if reply.status != _OK:
        raise _Unusable(f"the server answered {reply.status}")
    found = parse(bytes(reply.body).decode("utf-8", "replace"))
    if not found:
        raise _Unusable("the page has no metric of vLLM or Triton")
    return found
