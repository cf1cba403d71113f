"""Requests to nodes, and what happens to requests that a lost node held."""

import socket
import threading
import time
from typing import Any

import pytest

from harness.remote import Request
from harness.wire.flight import Flight
from harness.wire.node_flights import LOST, NodeFlights
from tests.wire.test_flights import answer_all, read_request, served


def ended(flights: NodeFlights, count: int, limit_s: float = 10) -> list[Flight]:
    done: list[Flight] = []
    end_s = time.monotonic() + limit_s
    while len(done) < count and time.monotonic() < end_s:
        done += flights.turn(0.05)
    return done


def closes_after_one(peer: socket.socket, _number: int) -> None:
    read_request(peer)
    peer.close()


def never_answers(peer: socket.socket, _number: int) -> None:
    while read_request(peer):
        pass


@pytest.mark.parametrize(
    ("handler", "how"),
    [
        (closes_after_one, "the server closed the connection"),
        (never_answers, "no answer for 300 ms"),
    ],
)
def test_requests_of_a_lost_node_fail_and_other_nodes_answer_the_rest(
    handler: Any, how: str
) -> None:
    asked: list[int] = []
    lock = threading.Lock()

    def counted(peer: socket.socket, number: int) -> None:
        with lock:
            asked.append(number)
        answer_all(peer, number)

    with served(counted) as good, served(handler) as bad:
        flights = NodeFlights(
            [good, bad], [2, 2], [10.0, 10.0], lambda _: Request("/", body=(b"12",)), 0.3
        )
        try:
            sent = [Flight([n], [n], n) for n in range(40)]
            for flight in sent:
                flights.submit(flight)
            done = ended(flights, len(sent))
            # Each request ends exactly once.
            assert sorted(flight.first for flight in done) == list(range(40))
            failed = [flight for flight in done if flight.error is not None]
            assert 1 <= len(failed) <= 2  # only the requests that the lost node held have failed
            assert {flight.kind for flight in failed} == {LOST}
            assert {flight.server for flight in failed} == {1}
            assert [tuple(loss) for loss in flights.losses] == [(1, how)]
            assert len(asked) == 2  # the client opened no connection again
        finally:
            flights.close()


def test_waiting_requests_fail_if_no_node_is_left() -> None:
    with served(closes_after_one) as bad:
        flights = NodeFlights([bad], [1], [1.0], lambda _: Request("/", body=(b"12",)), 5)
        try:
            for n in range(5):
                flights.submit(Flight([n], [n], n))
            done = ended(flights, 5)
            assert {flight.kind for flight in done} == {LOST, "server-gone"}
        finally:
            flights.close()
