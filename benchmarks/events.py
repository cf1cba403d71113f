"""Measures how late the client stamps the events of many token streams, compared with a bare epoll loop.

    python benchmarks/events.py [--rate 20000] [--streams 400] [--seconds 5] [--rounds 3]

A server in a separate process sends one token per event in vLLM's format. The token's text is the time at which the
server sent the token. The delay is the client's time stamp of a token minus the time in the token's text. The bare loop
uses the kernel's time stamp of the same bytes, and does not parse the bytes. The client and the server each run on one
core.
"""

import argparse
import gc
import os
import re
import select
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from harness.backends.parts.openai.replies import Reading
from harness.backends.parts.openai.streams import Streamed
from harness.core.config.address import parse_address
from harness.remote import Request
from harness.types import Array
from harness.wire.connections import Connection, Server, connect
from harness.wire.flight import Flight
from harness.wire.flights import Flights

CORES = sorted(os.sched_getaffinity(0))
BAR_US = 50.0
LEAD_S = 0.5
"""Time between the last request and the first event."""

_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n"
_EVENT = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"tiny","choices":[{"index":0,'
    b'"text":" %d","logprobs":null,"finish_reason":null,"token_ids":[7]}],"usage":{"prompt_tokens":8,'
    b'"completion_tokens":%d,"total_tokens":%d}}\n\n'
)
_LAST = b"data: [DONE]\n\n"
_SENT = re.compile(rb'"text":" (\d+)"')


class Load(NamedTuple):
    rate: int
    """Events per second over all streams."""
    streams: int
    seconds: float

    @property
    def events(self) -> int:
        """Number of events per stream."""
        return max(2, round(self.rate * self.seconds / self.streams))


class Seen(NamedTuple):
    late_us: Array
    """(n,) delay of each token."""
    cpu_us: float
    """CPU time that the client uses per event."""
    per_s: float


def serve(listening: socket.socket, load: Load) -> None:
    """Sends the events of all streams in turn, each event when it is due, and ends after the last event."""
    peers = [listening.accept()[0] for _ in range(load.streams)]
    for peer in peers:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer.recv(65_536)
        peer.sendall(_HEAD)
    gc.disable()
    due_s, gap_s = time.monotonic() + LEAD_S, 1 / load.rate
    for event in range(1, load.events + 1):
        for peer in peers:
            while (left_s := due_s - time.monotonic()) > 0:
                if left_s > 1e-4:
                    time.sleep(left_s - 5e-5)
            peer.sendall(_EVENT % (time.time_ns(), event, event + 8))
            due_s += gap_s
    for peer in peers:
        peer.sendall(_LAST)
        peer.close()


def served(load: Load, client: Callable[[Server, Load], Seen]) -> Seen:
    """Returns a client's measurement, with a server in a separate process."""
    with socket.create_server(("127.0.0.1", 0), backlog=4096) as listening:
        pid = os.fork()
        if not pid:
            try:
                os.sched_setaffinity(0, {CORES[0]})
                serve(listening, load)
            finally:
                os._exit(0)
        try:
            url = f"http://127.0.0.1:{listening.getsockname()[1]}"
            return client(Server(address=parse_address(url)), load)
        finally:
            os.waitpid(pid, 0)


def harness(server: Server, load: Load) -> Seen:
    """Receives the events with the client that runs use and the decoder of `openai`."""
    flights = Flights(
        [server],
        load.streams,
        lambda _: Request("/v1/completions", body=[b"{}"]),
        load.seconds + 60.0,
        reader=lambda: Streamed(Reading(wants_text=True)),
    )
    for order in range(load.streams):
        flights.submit(Flight([order], [0], order))
    done: list[Flight] = []
    cpu_ns, begin_s = time.thread_time_ns(), time.monotonic()
    while len(done) < load.streams:
        done += flights.turn(0.1)
    cpu_ns, took_s = time.thread_time_ns() - cpu_ns, time.monotonic() - begin_s - LEAD_S
    flights.close()
    late_ns = [late for flight in done for late in _late_ns(flight)]
    return _seen(late_ns, cpu_ns, took_s, load)


def _late_ns(flight: Flight) -> list[int]:
    """Returns, for each token, the time stamp of its arrival minus the time in its text."""
    assert flight.error is None, flight.error
    assert flight.reply is not None
    assert isinstance(flight.reader, Streamed)
    (answer,) = flight.reader.answer(flight.reply)
    sent_ns = [int(word) for word in answer.tobytes().split()]
    found, before = [], 0
    for stamp_ns, count in flight.chunks:
        found += [stamp_ns - sent for sent in sent_ns[before:count]]
        before = count
    return found


def bare(server: Server, load: Load) -> Seen:
    """Receives the events with the kernel's time stamps, and parses them only at the end."""
    epoll = select.epoll()
    connections: dict[int, Connection] = {}
    for _ in range(load.streams):
        made = connect(server, 10.0, 0)
        made.send(b"POST / HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        connections[made.fd] = made
        epoll.register(made.fd, select.EPOLLIN)
    got: list[tuple[bytes, int]] = []
    left = load.streams
    cpu_ns, begin_s = time.thread_time_ns(), time.monotonic()
    while left:
        for fd, _ in epoll.poll():
            data, stamp_ns = connections[fd].receive()
            if not data:
                epoll.unregister(fd)
                left -= 1
            got.append((data, stamp_ns))
    cpu_ns, took_s = time.thread_time_ns() - cpu_ns, time.monotonic() - begin_s - LEAD_S
    for connection in connections.values():
        connection.close()
    epoll.close()
    late_ns = [stamp - int(sent) for data, stamp in got for sent in _SENT.findall(data)]
    return _seen(late_ns, cpu_ns, took_s, load)


def _seen(late_ns: list[int], cpu_ns: int, took_s: float, load: Load) -> Seen:
    events = load.streams * load.events
    assert len(late_ns) == events, f"{len(late_ns)} of {events} events came"
    return Seen(np.asarray(late_ns) / 1e3, cpu_ns / events / 1e3, events / took_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rate", type=int, default=20_000)
    parser.add_argument("--streams", type=int, default=400)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    load = Load(options.rate, options.streams, options.seconds)
    os.sched_setaffinity(0, {CORES[-1]})
    gc.disable()
    clients = {"harness": harness, "bare": bare}
    found: dict[str, list[Seen]] = {name: [] for name in clients}
    for number in range(options.rounds):
        for name in clients if number % 2 == 0 else reversed(clients):
            seen = served(load, clients[name])
            found[name].append(seen)
            p50, p99 = np.percentile(seen.late_us, [50, 99])
            print(
                f"round {number + 1}: {name:8} {seen.per_s:,.0f} events/s, late by {p50:.0f} us at p50, "
                f"{p99:.0f} us at p99, {seen.cpu_us:.1f} us CPU per event",
                flush=True,
            )
            gc.collect()
    p50_us = median(float(np.median(seen.late_us)) for seen in found["harness"])
    print(
        f"late by {p50_us:.1f} us at p50 at {load.rate:,} events/s: {'met' if p50_us <= BAR_US else 'missed'} "
        f"(at most {BAR_US:g} us); load average {os.getloadavg()[0]:.1f}"
    )


if __name__ == "__main__":
    main()
