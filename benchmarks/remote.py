"""Compares the client of the remote backends with bare socket loops, on one core, with a null server on another core.

    python benchmarks/remote.py [--quick]

Rows: `single-stream` (p50 minus the p50 of a bare loop with one request in flight), `offline` (samples/s divided by the
rate of a bare epoll loop with the same number of connections), `server` (p99 and CPU time per query at a ladder of
rates, compared with LoadGen alone and with LoadGen on bare sockets: `bare_loadgen.py`).
"""

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.pairs import MIN_PAIRS, alternate, compared, difference, ratio, same
from harness.wire.null.server import NullServer

CONNECTIONS = 64
SECONDS = 2.0
RATES = (5_000, 10_000, 20_000, 40_000, 60_000)
BODY = bytes(256)
ANSWER = bytes(40)
REPLY = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nContent-Length: 40\r\n\r\n"
    + ANSWER
)
REQUEST = b"POST / HTTP/1.1\r\nHost: null\r\nContent-Length: 256\r\n\r\n" + BODY
"""The request that the bare clients send, including `bare_loadgen.py`."""


def connected(url: str) -> socket.socket:
    parts = urlsplit(url)
    made = socket.create_connection((str(parts.hostname), int(parts.port or 0)))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def bare_p50_us(url: str) -> float:
    """Measures a bare loop with one request in flight."""
    with connected(url) as server:
        times, end_s = [], time.monotonic() + SECONDS
        while time.monotonic() < end_s:
            begin_ns = time.time_ns()
            server.send(REQUEST)
            server.recv(65_536).find(b"\r\n\r\n")
            times.append(time.time_ns() - begin_ns)
    return median(times) / 1e3


def bare_per_s(url: str) -> float:
    """Measures a bare epoll loop with the harness's number of connections."""
    epoll, servers = select.epoll(), {}
    for _ in range(CONNECTIONS):
        server = connected(url)
        server.setblocking(False)
        servers[server.fileno()] = server
        epoll.register(server.fileno(), select.EPOLLIN)
        server.send(REQUEST)
    count, begin_s = 0, time.monotonic()
    while time.monotonic() - begin_s < SECONDS:
        for fd, _ in epoll.poll():
            server = servers[fd]
            server.recv(65_536).find(b"\r\n\r\n")
            server.send(REQUEST)
            count += 1
    per_s = count / (time.monotonic() - begin_s)
    for server in servers.values():
        server.close()
    epoll.close()
    return per_s


def result_of(url: str, *words: str) -> dict[str, Any]:
    """Makes one run and returns its result.json, because even an INVALID run has numbers."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "run")
        command = [
            *(
                sys.executable,
                "-m",
                "harness",
                "--backend",
                "http-raw",
                "--backend-option",
                "shape=10",
            ),
            *("--url", url, "--model", "digits", "--mode", "performance", "--no-metrics"),
            *(
                "--no-report",
                "--quiet",
                "--connections",
                str(CONNECTIONS),
                "--out",
                str(out),
                *words,
            ),
        ]
        subprocess.run(command, capture_output=True, check=False)
        loaded: dict[str, Any] = json.loads((out / "result.json").read_text())
        return loaded


def single_stream_us(url: str) -> float:
    words = ("--scenario", "single-stream", "--duration", f"{SECONDS:g}s", "--connections", "1")
    return float(result_of(url, *words)["latency_ns"]["p50"]) / 1e3


def offline_per_s(url: str) -> float:
    words = ("--scenario", "offline", "--duration", f"{SECONDS:g}s")
    return float(result_of(url, *words)["throughput_per_s"]["completed"])


class Told(NamedTuple):
    """Latencies and CPU time of one Server run."""

    p50_us: float
    p99_us: float
    cpu_us: float
    """CPU time that the measured process uses per query."""


def server(url: str, rate: int) -> Told:
    run = result_of(url, "--scenario", "server", "--target-qps", str(rate), "--duration", "3s")
    latency, cpu_s = run["latency_ns"], run["measured_process"]["cpu_s_per_query"]
    return Told(latency["p50"] / 1e3, latency["p99"] / 1e3, cpu_s * 1e6)


def bare_server(rate: int, *words: str) -> Told:
    command = [sys.executable, str(Path(__file__).with_name("bare_loadgen.py")), "server"]
    done = subprocess.run(
        [*command, str(3 * rate), str(rate), *words], capture_output=True, text=True, check=True
    )
    told = json.loads(done.stdout)
    return Told(told["p50_ns"] / 1e3, told["p99_ns"] / 1e3, told["cpu_s_per_query"] * 1e6)


def main() -> None:
    pairs = 3 if "--quick" in sys.argv else MIN_PAIRS
    with NullServer(REPLY) as null:
        os.sched_setaffinity(null.pid, {0})
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
        url = null.url
        seen = alternate(lambda: single_stream_us(url), lambda: bare_p50_us(url), pairs)
        found, noise = compared(seen, difference), same(seen, difference)
        print(
            f"single-stream: p50 {median(seen.a):.1f} us, bare loop {median(seen.b):.1f} us: "
            f"{found.value:+.1f} us ({found.low:.1f} to {found.high:.1f}), A/A {noise.value:+.1f}",
            flush=True,
        )
        seen = alternate(lambda: offline_per_s(url), lambda: bare_per_s(url), pairs)
        found, noise = compared(seen, ratio), same(seen, ratio)
        print(
            f"offline: {median(seen.a):,.0f}/s, bare epoll loop {median(seen.b):,.0f}/s: "
            f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f}), A/A {noise.value:.2f}",
            flush=True,
        )
        for rate in RATES:
            rows: dict[str, list[Told]] = {"harness": [], "bare sockets": [], "LoadGen alone": []}
            for _ in range(pairs):
                rows["harness"].append(server(url, rate))
                rows["bare sockets"].append(bare_server(rate, "--url", url))
                rows["LoadGen alone"].append(bare_server(rate))
            for name, told in rows.items():
                p50_us, p99_us, cpu_us = (median(column) for column in zip(*told, strict=True))
                print(
                    f"server at {rate:,}/s, {name}: p50 {p50_us:,.0f} us, p99 {p99_us:,.0f} us, "
                    f"{cpu_us:.1f} us CPU per query",
                    flush=True,
                )


if __name__ == "__main__":
    main()
