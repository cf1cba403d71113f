"""Reads the state of a run in progress from its Prometheus endpoint.

The address stands in the run's folder, which is foreign data: only an address of this machine is
called, and the answer counts only if it names that run.
"""

import ipaddress
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

import psutil
from prometheus_client.parser import text_string_to_metric_families

from harness.browse import within
from harness.core.config.parse import Endpoint, parse_endpoint
from harness.core.files import PARTIAL, WRONG_CONTENT
from harness.errors import HarnessError
from harness.results import run_folder

LIMIT_S = 1.0
"""Limit for connecting, and again for the answer."""

MOST_BYTES = 4 * 2**20
_PREFIX = "harness_"


class Stage(NamedTuple):
    name: str
    mean_s: float
    share: float
    """The share of the time of all stages, in [0, 1]."""


class Snapshot(NamedTuple):
    """A run at one moment. Rates are queries/s, latencies in seconds, from the start of the phase."""

    at_s: float
    """On the monotonic clock of this process."""
    phase: str
    """performance, accuracy or answers; empty before the first query."""
    progress: float
    """Share of the planned samples that is answered."""
    completed: float
    """Queries."""
    failed: float
    """Queries."""
    in_flight: float
    """Samples."""
    rate: float | None
    offered: float | None
    percentiles: Sequence[tuple[str, float]]
    stages: Sequence[Stage]
    is_valid: bool | None
    """None before the verdict."""


_Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Name of a series without `harness_` -> (labels, value) of each sample."""


def snapshot(root: Path, path: str) -> Snapshot | str:
    """The state of the run whose unfinished folder is at `path`, or why it is not known."""
    try:
        noted = within.read_file(root, f"{path}/{run_folder.ENDPOINT}").decode("ascii")
        endpoint = parse_endpoint(noted)
        host = _of_this_machine(endpoint.host)
    except FileNotFoundError:
        return (
            "its folder names no metrics endpoint: the run has ended, or was made with --no-metrics"
        )
    except (OSError, HarnessError, ValueError) as e:
        return f"its {run_folder.ENDPOINT} cannot be used: {e}"
    try:
        text = _page(endpoint._replace(host=host))
    except OSError as e:
        return f"nothing answers at {endpoint}: {e}: the run has ended, or died"
    try:
        samples = _samples(text)
        runs = {labels["run"] for labels, _ in samples.get("run_info", ())}
        if runs != {path.rpartition("/")[2].removesuffix(PARTIAL)}:
            return f"another run answers at {endpoint}: this one has ended, or died"
        return _state(samples)
    except WRONG_CONTENT as e:
        return f"the answer from {endpoint} is not a page of metrics: {type(e).__name__}"


def _of_this_machine(host: str) -> str:
    """The address to call; a ValueError for one of another machine, so that no folder sends us there."""
    address = ipaddress.ip_address(host)
    if address.is_unspecified:
        return "127.0.0.1" if address.version == 4 else "::1"
    own = {one.address for addresses in psutil.net_if_addrs().values() for one in addresses}
    if address.is_loopback or host in own:
        return host
    raise ValueError(f"{host} is not an address of this machine")


def _page(endpoint: Endpoint) -> str:
    """The metrics. The whole answer must come within LIMIT_S, whoever answers there."""
    deadline_s = monotonic() + LIMIT_S
    answer = b""
    with socket.create_connection(endpoint, LIMIT_S) as connection:
        connection.sendall(f"GET /metrics HTTP/1.0\r\nHost: {endpoint}\r\n\r\n".encode())
        while len(answer) < MOST_BYTES:
            left_s = deadline_s - monotonic()
            if left_s <= 0:
                raise TimeoutError(f"no whole answer in {LIMIT_S:g} s")
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
            if sample.name.startswith(_PREFIX) and not sample.name.endswith("_bucket"):
                name = sample.name.removeprefix(_PREFIX)
                found.setdefault(name, []).append((sample.labels, float(sample.value)))
    return found


def _state(samples: _Samples) -> Snapshot:
    """The state of the last phase that has begun."""
    phases = [labels["phase"] for labels, _ in samples.get("planned_samples", ())]
    phase = phases[-1] if phases else ""

    def value(name: str) -> float | None:
        ours = (v for labels, v in samples.get(name, ()) if labels["phase"] == phase)
        return next(ours, None)

    valid = next((v for _, v in samples.get("run_valid", ())), None)
    return Snapshot(
        at_s=monotonic(),
        phase=phase,
        progress=value("progress_ratio") or 0.0,
        completed=value("queries_completed_total") or 0.0,
        failed=value("queries_failed_total") or 0.0,
        in_flight=value("in_flight_samples") or 0.0,
        rate=value("achieved_queries_per_second"),
        offered=value("asked_queries_per_second"),
        percentiles=list(_percentiles(samples, phase)),
        stages=_stages(samples, phase),
        is_valid=None if valid is None else bool(valid),
    )


def _percentiles(samples: _Samples, phase: str) -> Iterator[tuple[str, float]]:
    for labels, seconds in samples.get("latency_percentile_seconds", ()):
        if labels["phase"] == phase:
            yield f"p{float(labels['quantile']) * 100:g}", seconds


def _stages(samples: _Samples, phase: str) -> list[Stage]:
    """Mean time of a sample in each stage."""
    sums, counts = (
        {
            labels["stage"]: v
            for labels, v in samples.get(f"stage_seconds_{part}", ())
            if labels["phase"] == phase
        }
        for part in ("sum", "count")
    )
    means = {name: total / counts[name] for name, total in sums.items() if counts.get(name)}
    whole = sum(means.values())
    return [Stage(name, mean, mean / whole if whole else 0.0) for name, mean in means.items()]
