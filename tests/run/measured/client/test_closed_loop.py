"""In a closed loop, the receiving thread issues the next queries after each answer, over every transport."""

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from harness.core.config.address import parse_address
from harness.loadgen.answers import AnswerRow
from harness.loadgen.binding import Callbacks, Complete, responder_for
from harness.remote import Reply, Request
from harness.run.journal import Journal, RowKind
from harness.run.measured.client.dispatch import Delivery, DirectDispatcher
from harness.run.measured.dispatch.instance import Failures
from harness.run.measured.dispatch.threads import WORKER
from harness.run.measured.own_scheduler import ClosedLoop, scheduler_for
from harness.run.supervisor.completions import read_completions
from harness.wire.connections import Server
from harness.wire.flights import Flights
from harness.wire.grpc.calls import Calls
from harness.wire.null.server import NullServer
from harness.wire.transport import Transport
from tests.builders.support import UNCHANGED, plan

QUERIES = 200
BODY = b"12345678"
HTTP = b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n" + BODY
ROW = AnswerRow((2,), np.dtype("float32"))


class Remote:
    """Returns two float32 values per sample."""

    def answer(self, reply: Reply, samples: int) -> Any:
        return np.frombuffer(bytes(reply.body), np.float32).reshape(samples, 2)


def over_http(url: str, connections: int) -> Transport:
    server = Server(address=parse_address(url))
    return Flights([server], connections, lambda _: Request("/", body=[b"x"]), 10.0)


def over_grpc(url: str, connections: int) -> Transport:
    path = "/inference.GRPCInferenceService/ModelInfer"
    server = Server(address=parse_address(url))
    return Calls([server], connections, lambda _: Request(path, body=[b"x"]), 10.0)


def journal_of_replies() -> Journal:
    fd = Journal.create()
    Journal.resize(fd, QUERIES, 1, RowKind.REPLY)
    return Journal(fd)


def run(
    open_transport: Callable[[str, int], Transport], url: str, concurrency: int, folder: Path
) -> tuple[Sequence[str], Failures]:
    """Returns the names of the issuing threads, in order, and the failures."""
    load = plan(
        "server",
        target_qps=None,
        concurrency=concurrency,
        query_count=QUERIES,
        journal_samples=QUERIES,
    )
    journal, failures, threads = journal_of_replies(), Failures(), []
    loop = scheduler_for(load, journal)
    assert isinstance(loop, ClosedLoop)
    transport = open_transport(url, concurrency)
    responder = responder_for(64, ROW, cast("Complete", loop.complete))
    rows = journal.remote_writer()
    delivery = Delivery(
        cast("Any", Remote()), UNCHANGED, cast("Any", responder), rows, ROW, failures, 64
    )
    dispatcher = DirectDispatcher(transport, delivery, 1, journal.issuer())
    loop.issue_on(dispatcher)

    def issue(ids: list[int], indices: list[int]) -> None:
        threads.append(threading.current_thread().name)
        dispatcher.issue(ids, indices)

    try:
        loop.run(Callbacks(issue, lambda _: None, lambda _: None), folder)
    finally:
        dispatcher.stop()
        transport.close()
    done = read_completions(journal, load)
    assert done.answered_once
    assert len(done) == QUERIES
    return threads, failures


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize("scheme", ["http", "grpc"])
def test_all_calls_but_the_first_are_the_receiving_thread_s(
    scheme: str, concurrency: int, tmp_path: Path
) -> None:
    is_grpc = scheme == "grpc"
    with NullServer(BODY if is_grpc else HTTP, grpc=is_grpc) as null:
        opened = over_grpc if is_grpc else over_http
        threads, failures = run(opened, null.url, concurrency, tmp_path)
    assert failures.samples == 0
    assert threads[0] == threading.current_thread().name
    assert {*threads[1:]} == {f"{WORKER}0"}


def test_ended_server_fails_every_query_and_the_run_ends(tmp_path: Path) -> None:
    with NullServer(HTTP) as null:

        def opened(url: str, connections: int) -> Transport:
            flights = cast("Flights", over_http(url, connections))
            flights.gone = ConnectionRefusedError("refused")
            flights._free.clear()
            return flights

        threads, failures = run(opened, null.url, 4, tmp_path)
    assert failures.samples == QUERIES
    assert {*threads[1:]} == {f"{WORKER}0"}
