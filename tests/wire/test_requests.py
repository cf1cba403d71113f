from collections.abc import Sequence

import pytest

from harness.core.config.address import Address
from harness.remote import Buffer, Request
from harness.wire import requests as module
from harness.wire.connections import Server
from harness.wire.flight import Flight
from harness.wire.flights import Flights
from harness.wire.requests import SHORT_BYTES, Requests
from tests.wire.test_flights import answer_all, served

SERVERS = (Server(address=Address("one", 80)), Server(address=Address("two", 80)))


class Encoder:
    """Encodes an index as this number of bytes, and counts its calls."""

    def __init__(self, part: type[bytes] | type[memoryview] = bytes) -> None:
        self.asked: list[Sequence[int]] = []
        self._part = part

    def __call__(self, indices: Sequence[int]) -> Request:
        self.asked.append(indices)
        if 13 in indices:
            raise ValueError("no such sample")
        part: Buffer = self._part(b"x" * sum(indices))
        return Request("/infer", (), (part,))


def test_prepared_request_equals_one_made_on_demand() -> None:
    encode = Encoder()
    requests = Requests(SERVERS, encode)
    requests.prepare([3, 13, 5])
    for number, ready in enumerate(requests.ready):
        # Sample 13 is left out, because the query with this sample must fail with a reason.
        assert [*ready] == [3, 5]
        for index, whole in ready.items():
            parts, length = requests.parts([index], number)
            assert b"".join(parts) == whole
            assert len(whole) == length
    assert b"Host: one" in requests.ready[0][3]
    assert b"Host: two" in requests.ready[1][3]
    requests.prepare([4])
    assert [*requests.ready[0]] == [4]


@pytest.mark.parametrize(("part", "kept"), [(bytes, True), (memoryview, False)])
def test_no_copy_of_a_long_array_is_kept(part: type[bytes] | type[memoryview], kept: bool) -> None:
    requests = Requests(SERVERS[:1], Encoder(part))
    requests.prepare([SHORT_BYTES, 1])
    assert [*requests.ready[0]] == ([SHORT_BYTES, 1] if kept else [1])


def test_prepared_requests_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READY_BYTES", 1000)
    requests = Requests(SERVERS[:1], Encoder())
    requests.prepare(range(200, 300))
    assert 2 <= len(requests.ready[0]) <= 4


def test_prepared_request_is_not_encoded_again() -> None:
    encode = Encoder()
    with served(answer_all) as server:
        flights = Flights([server], 1, encode, 5.0)
        try:
            long = 3 * SHORT_BYTES
            flights.prepare([2, long])
            encode.asked.clear()
            done: list[Flight] = []
            for order, indices in enumerate(([2], [long], [2, 2], [7])):
                flights.submit(Flight(indices, indices, order))
                while len(done) <= order:
                    done += flights.turn(0.1)
        finally:
            flights.close()
    assert all(flight.error is None and flight.reply is not None for flight in done)
    assert encode.asked == [[2, 2], [7]]
