"""Each fault of the bad server matches its name, as seen through a plain socket."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import numpy as np
import pytest

from tests.stand_ins.servers import bad_server as bad
from tests.stand_ins.servers.bad_server import BadServer, Behaviour

TIMEOUT_S = 20
HEAD = b"\r\n\r\n"
IMAGES = np.zeros((2, 1, 8, 8), np.float32)


def request_of(*, binary: bool = True) -> bytes:
    tensor: dict[str, Any] = {"name": "image", "datatype": "FP32", "shape": [*IMAGES.shape]}
    raw = IMAGES.tobytes() if binary else b""
    if binary:
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = IMAGES.ravel().tolist()
    content = {"id": "7", "inputs": [tensor], "parameters": {"binary_data_output": binary}}
    text = json.dumps(content).encode()
    head = (
        f"POST /v2/models/digits/infer HTTP/1.1\r\nHost: h\r\nContent-Length: {len(text + raw)}\r\n"
    )
    if binary:
        head += f"Inference-Header-Content-Length: {len(text)}\r\n"
    return head.encode() + b"\r\n" + text + raw


REQUEST = request_of()


@contextmanager
def connected(server: BadServer) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", server.port), TIMEOUT_S) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield sock


def http_client(server: BadServer) -> closing[http.client.HTTPConnection]:
    return closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S))


def all_of(sock: socket.socket) -> bytes:
    data = b""
    while part := sock.recv(1 << 20):
        data += part
    return data


def reply_of(sock: socket.socket) -> tuple[bytes, bytes]:
    """Reads the head and the body; the header Content-Length states the size of the body."""
    data = b""
    while HEAD not in data:
        part = sock.recv(1)
        assert part, data
        data += part
    size = int(data.partition(b"\r\nContent-Length: ")[2].partition(b"\r")[0])
    body = b""
    while len(body) < size:
        part = sock.recv(size - len(body))
        assert part
        body += part
    return data, body


def asked(behaviour: Behaviour) -> tuple[bytes, bytes]:
    with BadServer(behaviour) as server, connected(server) as sock:
        sock.sendall(REQUEST)
        return reply_of(sock)


def asked_until_closed(behaviour: Behaviour) -> bytes:
    with BadServer(behaviour) as server, connected(server) as sock:
        sock.sendall(REQUEST)
        return all_of(sock)


def outputs_of(head: bytes, body: bytes) -> Any:
    size = int(head.partition(b"Inference-Header-Content-Length: ")[2].partition(b"\r")[0])
    content = json.loads(body[:size])
    return content, body[size:]


GOOD_HEAD, GOOD_BODY = asked(bad.good)


@pytest.mark.parametrize("binary", [True, False])
def test_the_good_path_answers_metadata_and_inference_as_a_function_says(binary: bool) -> None:
    def sums(inputs: bad.Tensors) -> bad.Tensors:
        return {"logits": inputs["image"].sum((2, 3)) + np.float32(0.5)}

    with BadServer(answer=sums) as server:
        with http_client(server) as connection:
            connection.request("GET", "/v2/models/digits")
            assert json.load(connection.getresponse())["inputs"][0]["shape"] == [-1, 1, 8, 8]
            connection.request("GET", "/v2/models/other")
            assert connection.getresponse().status == 404
        with connected(server) as sock:
            sock.sendall(request_of(binary=binary))
            head, body = reply_of(sock)
            assert len(server.requests) == 1
    if binary:
        content, raw = outputs_of(head, body)
        assert raw == np.full((2, 1), 0.5, np.float32).tobytes()
    else:
        content = json.loads(body)
        assert content["outputs"][0]["data"] == [0.5, 0.5]
    assert content["id"] == "7"
    assert content["outputs"][0]["shape"] == [2, 1]


def test_the_chosen_requests_misbehave_and_no_others() -> None:
    mark = bad.refuse(418)
    for chosen, numbers in (
        (bad.at(2, mark), {2}),
        (bad.since(3, mark), {3, 4}),
        (bad.every(2, mark), {2, 4}),
    ):
        with BadServer(chosen) as server, connected(server) as sock:
            statuses = []
            for _ in range(5):
                sock.sendall(REQUEST)
                statuses.append(reply_of(sock)[0].split()[1])
        assert {i for i, status in enumerate(statuses) if status == b"418"} == numbers


@pytest.mark.parametrize(
    ("behaviour", "is_reset", "has_begun"),
    [
        (bad.reset_before, True, False),
        (bad.reset_within, True, True),
        (bad.close_before, False, False),
        (bad.close_within, False, True),
    ],
)
def test_the_connection_ends_before_or_within_the_reply(
    behaviour: Behaviour, is_reset: bool, has_begun: bool
) -> None:
    with BadServer(behaviour) as server, connected(server) as sock:
        sock.sendall(REQUEST)
        data, was_reset = b"", False
        try:
            while part := sock.recv(1 << 16):
                data += part
        except ConnectionResetError:
            was_reset = True
    assert was_reset is is_reset
    assert bool(data) is has_begun
    assert len(data) < len(GOOD_HEAD + GOOD_BODY)
    assert GOOD_HEAD.startswith(data[:20])


def test_a_stale_connection_dies_at_its_second_request() -> None:
    with BadServer(bad.stale) as server, connected(server) as sock:
        sock.sendall(REQUEST)
        assert reply_of(sock)[1] == GOOD_BODY
        sock.sendall(REQUEST)
        with pytest.raises(ConnectionResetError):
            sock.recv(1)
        with connected(server) as other:
            other.sendall(REQUEST)
            assert reply_of(other)[1] == GOOD_BODY


def test_an_idle_connection_is_closed() -> None:
    with BadServer(idle_s=0.05) as server, connected(server) as sock:
        sock.sendall(REQUEST)
        assert reply_of(sock)[1] == GOOD_BODY
        assert all_of(sock) == b""


@pytest.mark.parametrize("behaviour", [bad.close_after, bad.say_close])
def test_the_connection_ends_after_the_reply(behaviour: Behaviour) -> None:
    data = asked_until_closed(behaviour)
    assert data.endswith(GOOD_BODY)
    assert (b"Connection: close\r\n" in data) is (behaviour is bad.say_close)


def test_a_restarted_server_is_refused_and_then_answers() -> None:
    with BadServer(bad.at(0, bad.restart(1.0))) as server:
        with connected(server) as sock:
            sock.sendall(REQUEST)
            assert ends(sock)
        refusals = 0
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            assert time.monotonic() < deadline
            try:
                with connected(server) as sock:
                    sock.sendall(REQUEST)
                    assert reply_of(sock)[1] == GOOD_BODY
                    break
            except ConnectionRefusedError:
                refusals += 1
                time.sleep(0.01)
    assert refusals


def ends(sock: socket.socket) -> bool:
    """Returns whether the connection ends without a reply."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_refused_url_has_no_listener() -> None:
    with bad.refused() as url:
        host, _, port = url.removeprefix("http://").partition(":")
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((host, int(port)), TIMEOUT_S)


def test_frozen_server_keeps_its_connections_and_the_block_ends() -> None:
    with BadServer(bad.freeze_all) as server, connected(server) as one, connected(server) as other:
        for sock in (one, other):
            sock.sendall(REQUEST)
            sock.settimeout(0.1)
            with pytest.raises(TimeoutError):
                sock.recv(1)


def test_a_stall_holds_one_connection_and_slow_holds_all() -> None:
    for behaviour, least_s in ((bad.stall(0.2), 0.2), (bad.slow(0.2), 0.6)):
        with BadServer(behaviour) as server:
            begin = time.monotonic()
            threads = [threading.Thread(target=ask_once, args=(server,)) for _ in range(3)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert time.monotonic() - begin >= least_s
            assert len(server.requests) == 3


def ask_once(server: BadServer) -> None:
    with connected(server) as sock:
        sock.sendall(REQUEST)
        reply_of(sock)


def test_one_byte_segments_are_the_good_reply() -> None:
    assert asked(bad.one_byte_segments) == (GOOD_HEAD, GOOD_BODY)


def test_chunks_are_the_good_body() -> None:
    with BadServer(bad.chunked()) as server, http_client(server) as connection:
        head, _, body = REQUEST.partition(HEAD)
        size = head.rpartition(b" ")[2].decode()
        headers = {"Inference-Header-Content-Length": size}
        connection.request("POST", "/v2/models/digits/infer", body, headers)
        reply = connection.getresponse()
        assert reply.headers["Transfer-Encoding"] == "chunked"
        assert reply.read() == GOOD_BODY


def test_forms_that_end_with_the_connection_or_begin_before_the_reply() -> None:
    data = asked_until_closed(bad.until_close)
    assert b"\r\nContent-Length:" not in data
    assert data.partition(HEAD)[2] == GOOD_BODY
    first = asked_until_closed(chain(bad.continue_first))
    assert first == b"HTTP/1.1 100 Continue\r\n\r\n" + GOOD_HEAD + GOOD_BODY
    assert asked_until_closed(chain(bad.trailing_bytes)) == GOOD_HEAD + GOOD_BODY + b"surplus"
    assert len(asked(bad.oversized_head(100_000))[0]) > 100_000
    assert asked_until_closed(bad.garbage(b"SSH-2.0")) == b"SSH-2.0"
    assert not asked_until_closed(bad.garbage()).startswith(b"HTTP/1.1 200")


def chain(behaviour: Behaviour) -> Behaviour:
    def behave(connection: bad.Connection, request: bad.Request, nth: int) -> None:
        behaviour(connection, request, nth)
        connection.close()

    return behave


@pytest.mark.parametrize("retry_after", [None, "2"])
@pytest.mark.parametrize("status", [429, 503])
def test_busy_server_refuses_with_its_status_and_retry_after(
    status: int, retry_after: str | None
) -> None:
    head, body = asked(bad.refuse(status, retry_after))
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert (b"Retry-After: 2\r\n" in head) is (retry_after is not None)
    assert json.loads(body) == {"error": "overloaded"}


def test_contents_are_wrong_as_their_names_say() -> None:
    good, raw = outputs_of(GOOD_HEAD, GOOD_BODY)
    (output,) = good["outputs"]
    assert (output["shape"], output["datatype"], len(raw)) == ([2, 10], "FP32", 80)
    found = {}
    for name in ("other_shape", "fewer_rows", "more_rows", "other_dtype", "other_name", "other_id"):
        content, rest = outputs_of(*asked(getattr(bad, name)))
        (tensor,) = content["outputs"]
        found[name] = (tensor["name"], tensor["datatype"], tensor["shape"], content["id"])
        assert len(rest) == tensor["parameters"]["binary_data_size"]
    assert found == {
        "other_shape": ("logits", "FP32", [2, 9], "7"),
        "fewer_rows": ("logits", "FP32", [1, 10], "7"),
        "more_rows": ("logits", "FP32", [4, 10], "7"),
        "other_dtype": ("logits", "FP64", [2, 10], "7"),
        "other_name": ("not-logits", "FP32", [2, 10], "7"),
        "other_id": ("logits", "FP32", [2, 10], "of another request"),
    }
    _, rest = outputs_of(*asked(bad.not_finite))
    assert np.isnan(np.frombuffer(rest, np.float32)).all()
    assert asked(bad.resized(8))[1] == GOOD_BODY + bytes(8)
    assert asked(bad.resized(-8))[1] == GOOD_BODY[:-8]
    head, body = asked(bad.error_in_200)
    assert head.startswith(b"HTTP/1.1 200")
    assert json.loads(body) == {"error": "the model is not loaded"}
    with pytest.raises(json.JSONDecodeError):
        json.loads(asked(bad.no_json)[1])


def test_error_in_the_test_ends_the_block() -> None:
    def broken(connection: bad.Connection, request: bad.Request, nth: int) -> None:
        raise KeyError("typo")

    def ask() -> None:
        with BadServer(broken) as server, connected(server) as sock:
            sock.sendall(REQUEST)
            assert ends(sock)

    with pytest.raises(KeyError, match="typo"):
        ask()
