"""Runs LoadGen with an empty callback, which gives a lower bound for any Python harness. Prints p50 and p99 as JSON.

With --url, the callback sends 256 bytes to a server, and a second thread receives replies and completes queries. This
callback gives a lower bound for any client in Python, because it does not parse, check, stamp or store anything.
"""

import argparse
import json
import re
import select
import socket
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import mlperf_loadgen as lg

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.remote import REQUEST, connected

_PERCENTILE = re.compile(r'"result_(50|99)\.00_percentile_latency_ns", "value": (\d+)')


def direct(url: str, connections: int) -> Callable[[list[int], list[int]], None]:
    """Returns the callback that sends requests, and starts the daemon thread that receives replies."""
    epoll, flights = select.epoll(), {}
    free: list[socket.socket] = []
    waiting: deque[int] = deque()
    for _ in range(connections):
        made = connected(url)
        made.setblocking(False)
        epoll.register(made.fileno(), select.EPOLLIN)
        free.append(made)
    servers = {made.fileno(): made for made in free}

    def dispatch() -> None:
        while waiting and free:
            try:
                server = free.pop()
            except IndexError:
                return
            try:
                sample_id = waiting.popleft()
            except IndexError:
                free.append(server)
                continue
            flights[server.fileno()] = sample_id
            server.send(REQUEST)

    def issue(ids: list[int], _indices: list[int]) -> None:
        waiting.extend(ids)
        dispatch()

    def receive() -> None:
        while True:
            done = []
            for fd, _ in epoll.poll():
                server = servers[fd]
                server.recv(65_536).find(b"\r\n\r\n")
                done.append(lg.QuerySampleResponse(flights[fd], 0, 0))
                free.append(server)
            dispatch()
            lg.QuerySamplesComplete(done)

    threading.Thread(target=receive, daemon=True).start()
    return issue


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("scenario", choices=("single-stream", "server"))
    parser.add_argument("queries", type=int)
    parser.add_argument("rate", type=float, nargs="?", default=1.0, help="queries/s (server)")
    parser.add_argument("--url", help="http://HOST:PORT of a server that accepts any request")
    parser.add_argument("--connections", type=int, default=64)
    options = parser.parse_args()
    settings = lg.TestSettings()
    settings.scenario = lg.TestScenario.SingleStream
    settings.mode = lg.TestMode.PerformanceOnly
    settings.min_duration_ms, settings.min_query_count = 1, options.queries
    if options.scenario == "server":
        settings.scenario = lg.TestScenario.Server
        settings.server_target_qps = options.rate
        settings.server_coalesce_queries = True
    responses: list[lg.QuerySampleResponse] = []

    def issue(ids: list[int], _indices: list[int]) -> None:
        while len(responses) < len(ids):
            responses.append(lg.QuerySampleResponse(0, 0, 0))
        for response, sample_id in zip(responses, ids, strict=False):
            response.id = sample_id
        lg.QuerySamplesComplete(responses[: len(ids)])

    with tempfile.TemporaryDirectory() as folder:
        log = lg.LogSettings()
        log.log_output.outdir = folder
        log.enable_trace = False
        callback = direct(options.url, options.connections) if options.url else issue
        sut = lg.ConstructFastSUT(callback, lambda: None)
        qsl = lg.ConstructQSL(1024, 1024, lambda _: None, lambda _: None)
        begin_s = time.process_time()
        lg.StartTestWithLogSettings(sut, qsl, settings, log, "no-audit.config")
        text = (Path(folder) / "mlperf_log_detail.txt").read_text(encoding="utf-8")
    cpu_s = time.process_time() - begin_s
    found = {f"p{percent}_ns": int(ns) for percent, ns in _PERCENTILE.findall(text)}
    print(json.dumps(found | {"cpu_s_per_query": cpu_s / options.queries}))


main()
