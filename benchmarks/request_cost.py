"""Measures the CPU time that the client uses per request, stage by stage, compared with bare kernel calls.

    python benchmarks/request_cost.py [--connections 64] [--backend http-raw|http-json|openai]

One process acts as client and server in turn, on one thread. Only the client's part is timed, with the thread's CPU
clock, so the numbers hold even on a machine that other programs use. Each number is the 5th percentile over the rounds,
for a request of 256 bytes (64 numbers) and an answer of 10 numbers. As JSON, the request and the answer are longer.
openai sends a short prompt and reads a completion of two tokens as one JSON object.
"""

import argparse
import gc
import json
import select
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from time import thread_time_ns

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks.remote import REPLY, REQUEST
from harness.core import registry
from harness.core.config.address import parse_address
from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import responder_for
from harness.models.steps.postprocess import postprocessor
from harness.remote import Remote, Reply
from harness.run.journal import Journal, RowKind
from harness.run.measured.client.dispatch import Delivery, merged_samples
from harness.run.measured.dispatch.instance import Failures
from harness.types import BackendSetup, Batch, Step, TensorSpec
from harness.wire.connections import Server
from harness.wire.flight import Flight
from harness.wire.flights import Flights

REQUESTS = 30_000
LOW = 0.05

BACKENDS = ("http-raw", "http-json", "openai")
PROMPT = b'{"max_tokens":2,"prompt":"the quick brown fox 1"}'
COMPLETION = {
    "id": "cmpl-1",
    "object": "text_completion",
    "model": "tiny",
    "data": [{"id": "tiny", "object": "model"}],  # some clients request the list of models first
    "choices": [{"index": 0, "text": " ok", "logprobs": None, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 8, "completion_tokens": 2, "total_tokens": 10},
}
IMAGE = TensorSpec("image", "float32", ("batch", 1, 8, 8))
SCORES = np.random.default_rng(1).random(10).round(6)


def remote_of(backend: str) -> Remote:
    """Returns the plug-in. All requests that openai sends before the run get the same completion."""
    is_openai = backend == "openai"
    options = {"stream": "off", "answer": "text"} if is_openai else {"shape": "10"}
    inputs = (TensorSpec("request", "string", ("batch",)) if is_openai else IMAGE,)
    setup = BackendSetup(model=None, model_name="null", inputs=inputs, options=options)
    found: Remote = registry.load("backend", backend)(setup)
    if is_openai:
        body = memoryview(json.dumps(COMPLETION).encode())
        found.open(lambda _: Reply(200, b"", body))
    return found


def batch_of(backend: str) -> Batch:
    if backend == "openai":
        return Batch(1, {"request": np.array([PROMPT], object)})
    return Batch(1, {"image": np.random.default_rng(0).random((1, 1, 8, 8), np.float32)})


def reply_of(backend: str) -> bytes:
    if backend == "http-raw":
        return REPLY
    content = COMPLETION if backend == "openai" else {"predictions": [SCORES.tolist()]}
    body = json.dumps(content).encode()
    head = (
        f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def flights_to(port: int, connections: int, remote: Remote, batch: Batch) -> Flights:
    server = Server(address=parse_address(f"http://127.0.0.1:{port}"))
    made = Flights([server], connections, lambda _: remote.request(batch), 10.0)
    made.prepare([0])
    return made


def delivery(capacity: int, remote: Remote, backend: str) -> Delivery:
    """Returns a run's delivery without the call into LoadGen."""
    journal = Journal.create()
    Journal.resize(journal, capacity, 1, RowKind.REPLY)
    is_text = backend == "openai"
    row = AnswerRow((3,), np.dtype(np.uint8)) if is_text else AnswerRow((), np.dtype(np.int64))
    most = merged_samples(1, row)
    steps = postprocessor(() if is_text else (Step("argmax", {}),), None)
    responder = responder_for(most, row, lambda _responses: None)
    rows = Journal(journal).remote_writer()
    return Delivery(remote, steps, responder, rows, row, Failures(), most)


class Peers:
    """The servers' ends of the connections, which answer outside the timed parts."""

    def __init__(self, count: int, reply: bytes = REPLY) -> None:
        self._reply = reply
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = int(self._listener.getsockname()[1])
        self._ends: list[socket.socket] = []
        self._thread = threading.Thread(target=self._accept, args=(count,))
        self._thread.start()

    def _accept(self, count: int) -> None:
        self._ends += [self._listener.accept()[0] for _ in range(count)]

    def answer(self) -> None:
        self._thread.join()
        for end in self._ends:
            end.recv(65_536)
            end.send(self._reply)


def client_us(count: int, rounds: int, backend: str) -> dict[str, float]:
    """Returns the CPU time per request in us, by stage."""
    peers, remote = Peers(count, reply_of(backend)), remote_of(backend)
    flights = flights_to(peers.port, count, remote, batch_of(backend))
    deliver = delivery(rounds * count, remote, backend).deliver
    spent: dict[str, list[int]] = {"submit": [], "turn": [], "deliver": []}
    for first in range(0, rounds * count, count):
        begin_ns = thread_time_ns()
        for order in range(first, first + count):
            flights.submit(Flight([order], [0], order))
        spent["submit"].append(thread_time_ns() - begin_ns)
        peers.answer()
        turn_ns = deliver_ns = found = 0
        while found < count:
            begin_ns = thread_time_ns()
            done = flights.turn(0.1)
            turned_ns = thread_time_ns()
            deliver(done)
            deliver_ns += thread_time_ns() - turned_ns
            turn_ns += turned_ns - begin_ns
            found += len(done)
        spent["turn"].append(turn_ns)
        spent["deliver"].append(deliver_ns)
    flights.close()
    return {name: low_us(values, count) for name, values in spent.items()}


def bare_us(count: int, rounds: int) -> float:
    """Returns the CPU time per request in us of a bare loop that sends, waits with epoll and receives."""
    peers = Peers(count)
    epoll, servers = select.epoll(), {}
    for _ in range(count):
        server = socket.create_connection(("127.0.0.1", peers.port))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        servers[server.fileno()] = server
        epoll.register(server.fileno(), select.EPOLLIN)
    spent = []
    for _ in range(rounds):
        begin_ns = thread_time_ns()
        for server in servers.values():
            server.send(REQUEST)
        spent_ns = thread_time_ns() - begin_ns
        peers.answer()
        begin_ns, found = thread_time_ns(), 0
        while found < count:
            for fd, _ in epoll.poll():
                servers[fd].recv(65_536).find(b"\r\n\r\n")
                found += 1
        spent.append(spent_ns + thread_time_ns() - begin_ns)
    for server in servers.values():
        server.close()
    epoll.close()
    return low_us(spent, count)


def low_us(spent_ns: Sequence[int], requests: int) -> float:
    return float(np.quantile(spent_ns, LOW)) / requests / 1e3


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--backend", choices=BACKENDS, default=BACKENDS[0])
    given = parser.parse_args()
    count = given.connections
    rounds = max(400, REQUESTS // count)
    gc.disable()
    stages, bare = client_us(count, rounds, given.backend), bare_us(count, rounds)
    told = ", ".join(f"{name} {us:.1f}" for name, us in stages.items())
    whole = sum(stages.values())
    print(
        f"{given.backend}, {count} in flight: {whole:.1f} us CPU per request without LoadGen ({told}); a bare loop {bare:.1f} us, so "
        f"{whole - bare:+.1f} us",
        flush=True,
    )


if __name__ == "__main__":
    main()
