"""Calls over gRPC: each flight returns once, with its reply or with the kind of its failure."""

import socket
import sys
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from harness.core.config.address import parse_address
from harness.errors import ConfigError, PluginUnavailable
from harness.remote import Request
from harness.wire.connections import Server
from harness.wire.flight import Flight
from harness.wire.grpc import calls as calls_module
from harness.wire.grpc.calls import CallLink, Calls
from harness.wire.null.server import NullServer
from tests.stand_ins.servers.grpc_server import (
    MESSAGES,
    GrpcServer,
    refuse,
    sums,
)

PATH = "/inference.GRPCInferenceService/ModelInfer"
TIMEOUT_S = 10.0


def server_at(url: str, **more: Any) -> Server:
    return Server(address=parse_address(url), **more)


def request(indices: Sequence[int]) -> Request:
    """Encodes an index as an image whose first pixel is the index."""
    image = {"name": "image", "datatype": "FP32", "shape": [1, 1, 8, 8]}
    pixels = memoryview(bytes([indices[0]]) + bytes(255))
    made = MESSAGES["InferRequest"](model_name="digits", inputs=[image], raw=[bytes(pixels)])
    return Request(PATH, body=[made.SerializeToString()])


def flown(calls: Calls, indices: Sequence[int]) -> list[Flight]:
    """Returns all flights in the order in which they return."""
    for index in indices:
        calls.submit(Flight([index], [index], index))
    done: list[Flight] = []
    while len(done) < len(indices):
        done += calls.turn(0.1)
    return done


@pytest.mark.parametrize(("connections", "size"), [(1, 16_379), (7, 0), (7, 16_380), (7, 200_000)])
def test_every_call_gets_the_null_server_s_message(connections: int, size: int) -> None:
    with NullServer(bytes(size), grpc=True) as null:
        calls = Calls([server_at(null.url)], connections, request, TIMEOUT_S)
        try:
            done = flown(calls, range(40))
        finally:
            calls.close()
    assert sorted(flight.first for flight in done) == [*range(40)]
    for flight in done:
        assert flight.error is None
        assert flight.reply is not None
        assert bytes(flight.reply.body) == bytes(size)
        assert 0 < flight.taken_ns <= flight.sent_ns <= flight.read_ns
        # Grpcio hides the kernel's time stamp, so the time of arrival is unknown.
        assert flight.arrived_ns == 0
    assert calls.waited == 40 - connections
    assert calls.peers() == [("127.0.0.1", True)]


def test_one_thread_submits_and_another_thread_receives_all() -> None:
    found: list[Flight] = []
    with GrpcServer() as server:
        calls = Calls([server_at(server.url)], 4, request, TIMEOUT_S)

        def receive() -> None:
            while len(found) < 100:
                found.extend(calls.turn(0.1))

        thread = threading.Thread(target=receive)
        thread.start()
        for index in range(100):
            calls.submit(Flight([index], [index], index))
        thread.join()
        calls.close()
    assert sorted(flight.first for flight in found) == [*range(100)]
    assert {flight.reply is not None for flight in found} == {True}


def test_replicas_share_the_calls() -> None:
    with GrpcServer() as one, GrpcServer() as other:
        calls = Calls([server_at(one.url), server_at(other.url)], 2, request, TIMEOUT_S)
        flown(calls, range(20))
        calls.close()
        assert one.asked
        assert other.asked


@pytest.mark.parametrize("connections", [1, 2])
@pytest.mark.parametrize(
    ("code", "kind"), [("UNAVAILABLE", "reset"), ("INVALID_ARGUMENT", ""), ("INTERNAL", "")]
)
def test_a_refusal_is_a_reply_and_an_unavailable_server_is_lost(
    connections: int, code: str, kind: str
) -> None:
    with GrpcServer(refuse(code, "no")) as server:
        calls = Calls([server_at(server.url)], connections, request, TIMEOUT_S)
        (flight,) = flown(calls, [1])
        calls.close()
    assert flight.kind == kind
    if kind:
        assert str(flight.error) == "no"
    else:
        assert flight.reply is not None
        assert flight.reply.status > 0
        assert bytes(flight.reply.body).decode() == f"{code}: no"


@pytest.mark.parametrize("connections", [1, 2])
def test_a_call_past_its_deadline_is_a_timeout(connections: int) -> None:
    wait = threading.Event()

    def never(*_: Any) -> Any:
        wait.wait(TIMEOUT_S)

    with GrpcServer(never) as server:
        calls = Calls([server_at(server.url)], connections, request, 0.2)
        (flight,) = flown(calls, [1])
        calls.close()
        wait.set()
    assert flight.kind == "timeout"
    assert str(flight.error) == "no reply within 0.2 s (--request-timeout)"


@pytest.mark.parametrize("connections", [1, 8])
def test_ended_server_is_abandoned_and_no_flight_is_lost(
    connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "GIVE_UP_S", 0.0)
    with GrpcServer() as server:
        calls = Calls([server_at(server.url)], connections, request, TIMEOUT_S)
        flown(calls, range(10))
        before = calls.gone
        server.stop()
        done = flown(calls, range(30))
        later = flown(calls, range(30))
        calls.close()
    assert before is None
    assert calls.gone is not None
    assert {flight.kind for flight in done} <= {"reset", "server-gone"}
    assert {flight.kind for flight in later} == {"server-gone"}


def test_a_request_that_cannot_be_encoded_fails_alone() -> None:
    def odd(indices: Sequence[int]) -> Request:
        if indices[0] == 3:
            raise ValueError("no such sample")
        return request(indices)

    with GrpcServer() as server:
        for connections in (1, 2):
            calls = Calls([server_at(server.url)], connections, odd, TIMEOUT_S)
            kinds = {flight.first: flight.kind for flight in flown(calls, range(5))}
            calls.close()
            assert kinds == {0: "", 1: "", 2: "", 3: "encode", 4: ""}


def test_requests_of_loaded_samples_are_made_once() -> None:
    made: list[int] = []

    def counted(indices: Sequence[int]) -> Request:
        made.append(indices[0])
        if indices[0] == 2:
            raise ValueError("no such sample")
        return request(indices)

    with GrpcServer() as server:
        for connections in (1, 2):
            calls = Calls([server_at(server.url)], connections, counted, TIMEOUT_S)
            calls.prepare(range(3))
            made.clear()
            kinds = {flight.first: flight.kind for flight in flown(calls, range(4))}
            calls.close()
            assert made == [2, 3]
            assert kinds == {0: "", 1: "", 2: "encode", 3: ""}


def test_headers_are_metadata() -> None:
    found: list[dict[str, str]] = []

    def keep(context: Any, message: Any, nth: int) -> Any:
        found.append(dict(context.invocation_metadata()))
        return sums(context, message, nth)

    with GrpcServer(keep) as server:
        link = CallLink(server_at(server.url, headers=(("Authorization", "Bearer x"),)), TIMEOUT_S)
        assert link.exchange(request([0])).status == 0
        link.close()
    assert found[0]["authorization"] == "Bearer x"


def test_missing_grpcio_is_reported_with_the_command_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "grpc", None)
    with pytest.raises(
        PluginUnavailable, match=r"^--url grpc://... needs the module 'grpc': .*install"
    ):
        CallLink(server_at("grpc://127.0.0.1:1"), TIMEOUT_S).open_at_start()


def test_unreachable_server_is_reported_in_one_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(calls_module, "CONNECT_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"grpc://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(ConfigError, match=r"^--url \S+ does not speak gRPC: give the server's"):
            CallLink(server_at(url), TIMEOUT_S).open_at_start()
    with pytest.raises(ConfigError, match=r"^--url \S+ cannot be reached \(Connection refused\): "):
        CallLink(server_at(url), TIMEOUT_S).open_at_start()
