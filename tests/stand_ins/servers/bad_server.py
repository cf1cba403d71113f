"""A server of the Open Inference Protocol v2 that misbehaves on request; each function is one fault.

    with BadServer(at(100, reset_before)) as server:
        ...  # server.url: the 100th request for inference is answered with a reset, all others are answered

A behaviour is a function of the connection, the request and the number of the inference request, counted from 0. A
behaviour sends, waits, closes, or calls another behaviour. Metadata requests are always answered, so that a client
reaches its first inference request. Each connection uses a thread, because clear code matters more than speed here.
"""

import json
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from harness.types import Array

MODEL = "digits"
INPUTS = {"image": ("FP32", [-1, 1, 8, 8])}
DTYPES = {"FP32": "<f4", "FP64": "<f8", "INT32": "<i4", "INT64": "<i8", "UINT8": "u1"}
DATATYPES = {np.dtype(dtype): name for name, dtype in DTYPES.items()}
RESET = struct.pack("ii", 1, 0)
"""SO_LINGER value that makes `close` send RST."""

Tensors = Mapping[str, Array]
Answerer = Callable[[Tensors], Tensors]


def zeros(inputs: Tensors) -> Tensors:
    """Returns the answers of the backend `null`."""
    (rows,) = inputs.values()
    return {"logits": np.zeros((len(rows), 10), np.float32)}


@dataclass
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    """Header fields by name, in lower case."""
    body: bytes

    @property
    def json_bytes(self) -> int:
        return int(self.headers.get("inference-header-content-length", len(self.body)))

    @property
    def json(self) -> Any:
        return json.loads(self.body[: self.json_bytes])

    @property
    def inputs(self) -> Tensors:
        found, at = {}, self.json_bytes
        for tensor in self.json["inputs"]:
            dtype, size = (
                DTYPES[tensor["datatype"]],
                tensor.get("parameters", {}).get("binary_data_size"),
            )
            if size is None:
                values = np.array(tensor["data"], dtype)
            else:
                values = np.frombuffer(self.body[at : at + size], dtype)
                at += size
            found[tensor["name"]] = values.reshape(tensor["shape"])
        assert at == len(self.body)
        return found

    @property
    def wants_binary(self) -> bool:
        asked = [output.get("parameters", {}) for output in self.json.get("outputs", ())]
        if any("binary_data" in parameters for parameters in asked):
            return any(parameters.get("binary_data") for parameters in asked)
        return bool(self.json.get("parameters", {}).get("binary_data_output"))


@dataclass
class Reply:
    body: bytes = b""
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    """Header fields except Content-Length, which `raw` adds."""

    def head(self, *more: str) -> bytes:
        lines = [f"HTTP/1.1 {self.status} Status", *(f"{k}: {v}" for k, v in self.headers.items())]
        return ("\r\n".join([*lines, *more]) + "\r\n\r\n").encode()

    def raw(self) -> bytes:
        return self.head(f"Content-Length: {len(self.body)}") + self.body


def inference_reply(request: Request, outputs: Tensors, **changes: Any) -> Reply:
    """Returns a reply in the requested encoding. changes: fields of the reply's JSON."""
    described, raws = [], []
    for name, rows in outputs.items():
        about = {"name": name, "datatype": DATATYPES[rows.dtype], "shape": [*rows.shape]}
        if request.wants_binary:
            raws.append(rows.tobytes())
            described.append({**about, "parameters": {"binary_data_size": len(raws[-1])}})
        else:
            described.append({**about, "data": rows.ravel().tolist()})
    content = {"model_name": MODEL, "model_version": "1", "outputs": described}
    if "id" in request.json:
        content["id"] = request.json["id"]
    text = json.dumps({**content, **changes}).encode()
    if not raws:
        return Reply(text, headers={"Content-Type": "application/json"})
    headers = {
        "Content-Type": "application/octet-stream",
        "Inference-Header-Content-Length": str(len(text)),
    }
    return Reply(text + b"".join(raws), headers=headers)


class Connection:
    """One client connection, with the methods that behaviours use."""

    def __init__(self, server: "BadServer", sock: socket.socket) -> None:
        self.server = server
        self.sock = sock
        self.answered = 0
        """Number of inference requests that were already answered on the connection."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def reply(self, request: Request, **changes: Any) -> Reply:
        """Returns the correct reply, which a behaviour sends or damages."""
        return inference_reply(request, self.server.answer(request.inputs), **changes)

    def send(self, data: Reply | bytes) -> None:
        self.sock.sendall(data.raw() if isinstance(data, Reply) else data)

    def wait(self, seconds: float) -> None:
        """Waits, but returns at once if the server ends."""
        self.server.ended.wait(seconds)

    def close(self) -> None:
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)  # the shutdown wakes the reading thread
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self.sock.close()


Behaviour = Callable[[Connection, Request, int], None]


class BadServer:
    """Listens on 127.0.0.1 while its block runs."""

    def __init__(
        self,
        behaviour: Behaviour | None = None,
        *,
        answer: Answerer = zeros,
        idle_s: float | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """answer: function from inputs to outputs, by name. idle_s: time after which an idle connection is closed."""
        self.behaviour = behaviour or good
        """The current behaviour, which a test may change at any time."""
        self.answer = answer
        self.idle_s = idle_s
        self._tls = tls
        self.ended = threading.Event()
        self.requests: list[Request] = []
        """Inference requests in the order in which they arrived."""
        self.opened = 0
        """Number of connections opened so far."""
        self.errors: list[BaseException] = []
        """Exceptions in behaviours, which are faults of the test. The first exception is raised at the end of the
        block.
        """
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._open: set[Connection] = set()
        self._accepts = False
        self._threads: list[threading.Thread] = []
        self._listening = _bound(0)
        self.port: int = self._listening.getsockname()[1]
        self.url = (
            f"http://127.0.0.1:{self.port}" if tls is None else f"https://localhost:{self.port}"
        )

    def __enter__(self) -> Self:
        self._listen()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_error: object) -> None:
        self.ended.set()
        self.close()
        for thread in self._threads:
            thread.join(20)
            assert not thread.is_alive()
        if self.errors and kind is None:
            raise self.errors[0]

    def close(self) -> None:
        """Refuses new connections, and closes open ones."""
        with suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)  # the shutdown wakes the accepting thread
        self._listening.close()
        with self._lock:
            self._accepts = False
            connections = [*self._open]
        for connection in connections:
            connection.close()

    def restart(self, down_s: float) -> None:
        """Closes the port, refuses connections for this time, then listens on the same port again."""
        self.close()
        # The port is bound but not listening, so that no other program takes it.
        self._listening = _bound(self.port)
        if not self.ended.wait(down_s):
            self._listen()

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A lock for behaviours that handle one request at a time."""
        with self._turn:
            yield

    def _listen(self) -> None:
        self._accepts = True
        self._listening.listen(1024)
        self._start(self._accept, self._listening)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=self._guarded, args=(work, *arguments), daemon=True)
        self._threads.append(thread)
        thread.start()

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except OSError:  # the client has left, or a behaviour has closed the connection
            pass
        except BaseException as e:  # noqa: BLE001 - raised where the block ends
            self.errors.append(e)

    def _accept(self, listening: socket.socket) -> None:
        while True:
            sock, _ = listening.accept()
            with self._lock:
                if not self._accepts:
                    sock.close()
                    return
                connection = Connection(self, sock)
                self._open.add(connection)
                self.opened += 1
            self._start(self._serve, connection)

    def _serve(self, connection: Connection) -> None:
        try:
            # The handshake runs in this thread, because it would delay the accepting thread.
            if self._tls is not None:
                connection.sock = self._tls.wrap_socket(connection.sock, server_side=True)
            while (request := read_request(connection.sock, self.idle_s)) is not None:
                self._answer(connection, request)
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _answer(self, connection: Connection, request: Request) -> None:
        if not request.path.endswith("/infer"):
            connection.send(metadata(request))
            return
        with self._lock:
            nth = len(self.requests)
            self.requests.append(request)
        self.behaviour(connection, request, nth)
        connection.answered += 1


def _bound(port: int) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", port))
    return sock


@contextmanager
def refused() -> Iterator[str]:
    """Yields a URL at which no server listens."""
    with _bound(0) as sock:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"


def read_request(sock: socket.socket, idle_s: float | None = None) -> Request | None:
    """Returns the next request; None if the client has closed, or has sent nothing for `idle_s`."""
    sock.settimeout(idle_s)
    try:
        data = sock.recv(1 << 16)
    except TimeoutError:
        return None
    sock.settimeout(None)
    while b"\r\n\r\n" not in data:
        if not data:
            return None
        data += _received(sock, 1 << 16)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    method, path, _ = first.split(" ")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    size = int(headers.get("content-length", 0))
    parts = [body]
    while (missing := size - sum(map(len, parts))) > 0:
        parts.append(_received(sock, min(missing, 1 << 20)))
    whole = b"".join(parts)
    assert len(whole) == size, "the client sent a request before the last one was answered"
    return Request(method, path, headers, whole)


def _received(sock: socket.socket, most: int) -> bytes:
    if not (data := sock.recv(most)):
        raise ConnectionResetError("the client closed within a request")
    return data


def metadata(request: Request) -> Reply:
    """Returns the metadata of the server, its readiness, or the model's metadata with one input."""
    inputs = [{"name": n, "datatype": t, "shape": s} for n, (t, s) in INPUTS.items()]
    outputs = [{"name": "logits", "datatype": "FP32", "shape": [-1, 10]}]
    model = {"name": MODEL, "versions": ["1"], "platform": "bad", "inputs": inputs}
    contents: dict[str, object] = {
        "/v2": {"name": "bad", "version": "1", "extensions": ["binary_tensor_data"]},
        "/v2/health/live": {},
        "/v2/health/ready": {},
        f"/v2/models/{MODEL}": {**model, "outputs": outputs},
        f"/v2/models/{MODEL}/ready": {},
    }
    content = contents.get(request.path.replace("/versions/1", ""))
    headers = {"Content-Type": "application/json"}
    if content is None:
        return Reply(b'{"error": "not found"}', 404, headers)
    return Reply(json.dumps(content).encode(), 200, headers)


# These functions choose the requests that misbehave.


def at(number: int, behaviour: Behaviour) -> Behaviour:
    """Misbehaves only at request `number`."""
    return when(lambda nth: nth == number, behaviour)


def since(number: int, behaviour: Behaviour) -> Behaviour:
    """Misbehaves at all requests from `number` on."""
    return when(lambda nth: nth >= number, behaviour)


def every(count: int, behaviour: Behaviour) -> Behaviour:
    """Misbehaves at each request whose number is a multiple of `count`, except the first."""
    return when(lambda nth: nth > 0 and nth % count == 0, behaviour)


def when(is_chosen: Callable[[int], bool], behaviour: Behaviour) -> Behaviour:
    def chosen(connection: Connection, request: Request, nth: int) -> None:
        (behaviour if is_chosen(nth) else good)(connection, request, nth)

    return chosen


def good(connection: Connection, request: Request, nth: int) -> None:
    connection.send(connection.reply(request))


# These behaviours break the connection.


def reset_before(connection: Connection, request: Request, nth: int) -> None:
    connection.reset()


def reset_within(connection: Connection, request: Request, nth: int) -> None:
    """Resets the connection when the client has received half of the reply."""
    _send_half(connection, request)
    # A reset discards data that the client has not read, so the client gets time to read.
    time.sleep(0.05)
    connection.reset()


def close_before(connection: Connection, request: Request, nth: int) -> None:
    connection.close()


def close_within(connection: Connection, request: Request, nth: int) -> None:
    _send_half(connection, request)
    connection.close()


def _send_half(connection: Connection, request: Request) -> None:
    raw = connection.reply(request).raw()
    connection.send(raw[: len(raw) // 2])


def stale(connection: Connection, request: Request, nth: int) -> None:
    """Closes a used connection while the next request is on its way (the race of keep-alive)."""
    if connection.answered:
        connection.reset()
    else:
        good(connection, request, nth)


def close_after(connection: Connection, request: Request, nth: int) -> None:
    """Answers, then closes without notice."""
    good(connection, request, nth)
    connection.close()


def say_close(connection: Connection, request: Request, nth: int) -> None:
    """Answers with `Connection: close`, then closes."""
    reply = connection.reply(request)
    connection.send(replace(reply, headers={**reply.headers, "Connection": "close"}))
    connection.close()


def restart(down_s: float) -> Behaviour:
    """Makes the server disappear for this time, without answering requests in flight."""

    def behave(connection: Connection, request: Request, nth: int) -> None:
        connection.server.restart(down_s)

    return behave


# These behaviours take too much time.


def stall(seconds: float) -> Behaviour:
    """Waits before it answers; other connections are served in the meantime."""

    def behave(connection: Connection, request: Request, nth: int) -> None:
        connection.wait(seconds)
        good(connection, request, nth)

    return behave


def slow(seconds: float) -> Behaviour:
    """Works for this time on each request, one at a time, so that other requests queue."""

    def behave(connection: Connection, request: Request, nth: int) -> None:
        with connection.server.turn():
            connection.wait(seconds)
        good(connection, request, nth)

    return behave


def freeze(connection: Connection, request: Request, nth: int) -> None:
    """Never answers, but keeps the connection open."""
    connection.server.ended.wait()


def freeze_all(connection: Connection, request: Request, nth: int) -> None:
    """From this request on, does not answer on any connection, as if the machine had stopped."""
    connection.server.behaviour = freeze
    freeze(connection, request, nth)


# These behaviours break the form of the reply.


def one_byte_segments(connection: Connection, request: Request, nth: int) -> None:
    for byte in connection.reply(request).raw():
        connection.send(bytes([byte]))


def chunked(sizes: Sequence[int] = (1, 7, 64)) -> Behaviour:
    """Sends the reply in chunks. sizes: sizes of the chunks, in turn."""

    def behave(connection: Connection, request: Request, nth: int) -> None:
        reply = connection.reply(request)
        connection.send(reply.head("Transfer-Encoding: chunked"))
        rest, turn = reply.body, 0
        while rest:
            size = sizes[turn % len(sizes)]
            connection.send(b"%x\r\n%b\r\n" % (len(rest[:size]), rest[:size]))
            rest, turn = rest[size:], turn + 1
        connection.send(b"0\r\n\r\n")

    return behave


def continue_first(connection: Connection, request: Request, nth: int) -> None:
    connection.send(b"HTTP/1.1 100 Continue\r\n\r\n")
    good(connection, request, nth)


def until_close(connection: Connection, request: Request, nth: int) -> None:
    """Sends a reply without a length, which ends when the connection ends."""
    reply = connection.reply(request)
    connection.send(reply.head() + reply.body)
    connection.close()


def trailing_bytes(connection: Connection, request: Request, nth: int) -> None:
    """Sends more bytes after the reply than the reply's header states."""
    connection.send(connection.reply(request).raw() + b"surplus")


def oversized_head(size: int = 1 << 20) -> Behaviour:
    def behave(connection: Connection, request: Request, nth: int) -> None:
        reply = connection.reply(request)
        connection.send(replace(reply, headers={**reply.headers, "X-Long": "x" * size}))

    return behave


def garbage(data: bytes | None = None) -> Behaviour:
    """Sends garbage. data: bytes in place of a reply; None: random bytes."""

    def behave(connection: Connection, request: Request, nth: int) -> None:
        connection.send(os.urandom(500) if data is None else data)
        connection.close()

    return behave


# These behaviours break the content of the reply.


def refuse(status: int, retry_after: str | None = None, text: str = "overloaded") -> Behaviour:
    """Replies with an HTTP error such as 429 or 503."""

    def behave(connection: Connection, request: Request, nth: int) -> None:
        headers = {"Content-Type": "application/json"}
        if retry_after is not None:
            headers["Retry-After"] = retry_after
        connection.send(Reply(json.dumps({"error": text}).encode(), status, headers))

    return behave


def error_in_200(connection: Connection, request: Request, nth: int) -> None:
    refuse(200, text="the model is not loaded")(connection, request, nth)


def no_json(connection: Connection, request: Request, nth: int) -> None:
    connection.send(Reply(b"<html>", headers={"Content-Type": "text/html"}))


def other_id(connection: Connection, request: Request, nth: int) -> None:
    connection.send(connection.reply(request, id="of another request"))


def other_outputs(change: Answerer) -> Behaviour:
    """Changes the outputs. change: function from the right outputs to the outputs that are sent."""

    def behave(connection: Connection, request: Request, nth: int) -> None:
        outputs = change(connection.server.answer(request.inputs))
        connection.send(inference_reply(request, outputs))

    return behave


other_shape = other_outputs(lambda outputs: {n: rows[:, :-1].copy() for n, rows in outputs.items()})
fewer_rows = other_outputs(lambda outputs: {n: rows[:-1] for n, rows in outputs.items()})
more_rows = other_outputs(lambda outputs: {n: np.repeat(r, 2, 0) for n, r in outputs.items()})
other_dtype = other_outputs(lambda outputs: {n: r.astype(np.float64) for n, r in outputs.items()})
other_name = other_outputs(lambda outputs: {f"not-{n}": rows for n, rows in outputs.items()})
not_finite = other_outputs(lambda outputs: {n: r * np.float32("nan") for n, r in outputs.items()})


def resized(surplus: int) -> Behaviour:
    """Makes the body longer or shorter than its tensors by this number of bytes, with a correct Content-Length."""

    def behave(connection: Connection, request: Request, nth: int) -> None:
        reply = connection.reply(request)
        body = reply.body + bytes(surplus) if surplus > 0 else reply.body[:surplus]
        connection.send(replace(reply, body=body))

    return behave
