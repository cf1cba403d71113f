"""Reads the state of a run in progress from the run's Prometheus endpoint.

The endpoint's address comes from the run's folder, which is not trusted. This module therefore calls only addresses of
this machine, and accepts a reply only if it names the same run.
"""

import ipaddress
import re
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from harness.browse import within
from harness.core.config.parse import Endpoint, parse_endpoint
from harness.core.files import PARTIAL, WRONG_CONTENT
from harness.core.registry import SCENARIOS
from harness.errors import HarnessError
from harness.loadgen.scenario import scenario_named
from harness.results import run_folder

LIMIT_S = 1.0
"""Time limit for connecting and, separately, for the reply."""

MOST_BYTES = 4 * 2**20
LEAST_S = 1.0
"""The remaining time is estimated only once a phase has lasted at least this long."""

_PREFIX = "harness_"
_WITH_BUCKETS = ("harness_latency_seconds_bucket", "harness_token_time_seconds_bucket")
_UNUSED = ("idle", "iowait", "steal")
"""CPU modes in which no program on this machine uses the core."""


class Stage(NamedTuple):
    name: str
    mean_s: float
    share: float
    """Share of the total time of all stages, in [0, 1]."""


Buckets = Mapping[float, float]
"""Maps a bucket's upper bound in seconds to the number of values so far that do not exceed this bound."""


class Totals(NamedTuple):
    """Counts since the start of a run's phase, and current readings. Times are in seconds."""

    latency: Buckets
    token_times: Mapping[str, Buckets]
    """Buckets for `ttft` and `tpot`."""
    tokens: float | None
    stages: Mapping[str, tuple[float, float]]
    """Maps a stage to the sum and the count of its times."""
    nodes: Mapping[str, float]
    """Maps a node to the number of samples that it answered."""
    run_cpu_s: float | None
    busy_s: float | None
    """CPU time that all programs used, summed over the cores."""
    stolen_s: float | None
    waiting: float | None
    """Number of waiting samples."""
    watts: Mapping[str, float]
    bounds_s: Sequence[tuple[str, float]]
    """The SLO's bounds by percentile, such as ('p99', 0.05)."""
    token_bounds_s: Sequence[tuple[str, float]]
    cores: int | None = None
    """Number of cores on this machine."""


class Snapshot(NamedTuple):
    """A run's state at one moment. Rates are per second. Latencies are in seconds, and cover the time since the start
    of the phase.
    """

    at_s: float
    """Time of the snapshot, on this process's monotonic clock."""
    elapsed_s: float | None
    """Time from the phase's first query to the latest answer; None before the first answer."""
    scenario: str
    phase: str
    """performance, accuracy or answers; empty before the first query."""
    progress: float
    """Share of the planned samples that have been answered."""
    completed: float
    """Number of completed queries; in Offline, of samples."""
    failed: float
    """Number of failed queries; in Offline, of samples."""
    in_flight: float
    """Number of samples in flight."""
    rate: float | None
    offered: float | None
    stages: Sequence[Stage]
    is_valid: bool | None
    """Whether the run is VALID; None before the verdict."""
    totals: Totals
    planned: float | None = None
    """Number of samples planned for the phase."""

    @property
    def has_begun(self) -> bool:
        """Whether the phase has issued a query."""
        return bool(self.phase and (self.completed or self.in_flight))

    @property
    def is_answered(self) -> bool:
        """Whether all samples planned for the phase are answered."""
        return self.progress >= 1 and not self.in_flight

    @property
    def left_s(self) -> float | None:
        """Estimated time until all planned samples are answered; None while unknown."""
        if self.elapsed_s is None or self.elapsed_s < LEAST_S or not 0 < self.progress < 1:
            return None
        return self.elapsed_s * (1 - self.progress) / self.progress

    @property
    def counts_samples(self) -> bool:
        """Whether the scenario issues all samples in one query. Such a run counts samples instead of queries, and has
        no latency.
        """
        return _all_at_once(self.scenario)


_Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Maps the name of a series, without `harness_`, to the labels and value of each sample."""


def snapshot(root: Path, path: str) -> Snapshot | str:
    """Returns the state of the run whose unfinished folder is at `path`, or why the state is unknown."""
    try:
        noted = within.read_file(root, f"{path}/{run_folder.ENDPOINT}").decode("ascii")
        endpoint = parse_endpoint(noted)
        host = _of_this_machine(endpoint.host)
    except FileNotFoundError:
        return (
            "its folder has no metrics endpoint: the run has ended, or was made with --no-metrics"
        )
    except (OSError, HarnessError, ValueError) as e:
        return f"its {run_folder.ENDPOINT} cannot be used: {e}"
    try:
        text = _page(endpoint._replace(host=host))
    except OSError as e:
        return f"no answer from {endpoint} ({e}): the run has ended, or died"
    try:
        samples = _samples(text)
        runs = {labels["run"] for labels, _ in samples.get("run_info", ())}
        if runs != {path.rpartition("/")[2].removesuffix(PARTIAL)}:
            return f"a different run answers at {endpoint}: this run has ended, or died"
        return _state(samples)
    except WRONG_CONTENT as e:
        return f"the answer from {endpoint} is not a metrics page: {type(e).__name__}"


def _of_this_machine(host: str) -> str:
    """Returns the address to call, which must belong to this machine. Raises ValueError if the address belongs to
    another machine.
    """
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    own = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    if address.is_loopback or host in own:
        return host
    raise ValueError(f"{host} is not an address of this machine")


def _page(endpoint: Endpoint) -> str:
    """Returns the metrics page. The whole reply must arrive within LIMIT_S."""
    deadline_s = monotonic() + LIMIT_S
    answer = b""
    with socket.create_connection(endpoint, LIMIT_S) as connection:
        connection.sendall(f"GET /metrics HTTP/1.0\r\nHost: {endpoint}\r\n\r\n".encode())
        while len(answer) < MOST_BYTES:
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no complete answer within {LIMIT_S:g} s")
            connection.settimeout(left_s)
            part = connection.recv(65_536)
            if not part:
                break
            answer += part
    head, _, body = answer.partition(b"\r\n\r\n")
    if re.match(rb"HTTP/1\.[01] 200 ", head) is None:
        raise ConnectionError("the answer is not a page")
    return body.decode("utf-8", "replace")


def _samples(text: str) -> _Samples:
    found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            is_bucket = sample.name.endswith("_bucket")
            if sample.name in _WITH_BUCKETS if is_bucket else sample.name.startswith(_PREFIX):
                name = sample.name.removeprefix(_PREFIX)
                found.setdefault(name, []).append((sample.labels, float(sample.value)))
    return found


def _state(samples: _Samples) -> Snapshot:
    """Returns the state of the latest phase."""
    phases = [labels["phase"] for labels, _ in samples.get("planned_samples", ())]
    phase = phases[-1] if phases else ""
    (about, _), *_ = samples["run_info"]

    def value(name: str) -> float | None:
        ours = (v for labels, v in samples.get(name, ()) if labels.get("phase", phase) == phase)
        return next(ours, None)

    scenario = about.get("scenario", "")
    counted = "samples" if _all_at_once(scenario) else "queries"
    valid = next((v for _, v in samples.get("run_valid", ())), None)
    totals = _totals(samples, phase, value)
    completed = value(f"{counted}_completed_total") or 0.0
    per_s, queries = value("achieved_queries_per_second"), value("queries_completed_total")
    elapsed_s = queries / per_s if queries and per_s else None
    return Snapshot(
        at_s=monotonic(),
        elapsed_s=elapsed_s,
        scenario=scenario,
        phase=phase,
        progress=value("progress_ratio") or 0.0,
        completed=completed,
        failed=value(f"{counted}_failed_total") or 0.0,
        in_flight=value("in_flight_samples") or 0.0,
        rate=completed / elapsed_s if elapsed_s else None,
        offered=value("asked_queries_per_second"),
        stages=_stages(totals),
        is_valid=None if valid is None else bool(valid),
        totals=totals,
        planned=value("planned_samples"),
    )


def _all_at_once(scenario: str) -> bool:
    """Returns whether the scenario issues all samples at once. scenario: untrusted text."""
    return scenario in SCENARIOS and scenario_named(scenario).all_at_once


def _totals(samples: _Samples, phase: str, value: Callable[[str], float | None]) -> Totals:
    def ours(name: str) -> Iterator[tuple[Mapping[str, str], float]]:
        return (one for one in samples.get(name, ()) if one[0].get("phase", phase) == phase)

    def buckets(name: str, kind: str = "") -> Buckets:
        return {
            float(labels["le"]): count
            for labels, count in ours(f"{name}_bucket")
            if labels.get("time", "") == kind
        }

    counts = {labels["stage"]: count for labels, count in ours("stage_seconds_count")}
    cpu = {labels["mode"]: seconds for labels, seconds in ours("host_cpu_seconds_total")}
    times = {kind: buckets("token_time_seconds", kind) for kind in ("ttft", "tpot")}
    return Totals(
        latency=buckets("latency_seconds"),
        token_times={kind: found for kind, found in times.items() if found},
        tokens=value("tokens_total"),
        stages={
            labels["stage"]: (total, counts[labels["stage"]])
            for labels, total in ours("stage_seconds_sum")
            if labels["stage"] in counts
        },
        nodes={labels["node"]: n for labels, n in ours("node_samples_completed_total")},
        run_cpu_s=value("measured_cpu_seconds_total"),
        busy_s=sum(v for mode, v in cpu.items() if mode not in _UNUSED) if cpu else None,
        stolen_s=cpu.get("steal"),
        waiting=value("queue_depth_samples"),
        watts={labels["source"]: watts for labels, watts in ours("power_watts")},
        bounds_s=[(_percentile(labels), bound) for labels, bound in ours("slo_seconds")],
        token_bounds_s=[
            (f"{labels['time'].upper()} {_percentile(labels)}", bound)
            for labels, bound in ours("token_slo_seconds")
        ],
        cores=psutil.cpu_count(),
    )


def _percentile(labels: Mapping[str, str]) -> str:
    return f"p{float(labels['quantile']) * 100:.10g}"


def _stages(totals: Totals) -> list[Stage]:
    """Returns a sample's mean time in each stage."""
    means = {name: total / count for name, (total, count) in totals.stages.items() if count}
    whole = sum(means.values())
    return [Stage(name, mean, mean / whole if whole else 0.0) for name, mean in means.items()]
