"""Makes calls over gRPC: a link that waits for each reply, and an engine that keeps many calls in flight.

`arrived_ns` stays 0, because grpcio owns the sockets and the kernel's stamp of a reply is not available. Messages are
bytes, which the plug-in encodes and decodes. The module never sends a call again, and never uses a proxy.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any

from harness.core.clock import wall_ns
from harness.core.extras import how_to_install
from harness.errors import ConfigError, PluginUnavailable, one_line
from harness.remote import Reply, Request
from harness.wire.balance import Free, balanced
from harness.wire.connections import (
    Connection,
    LateReply,
    Server,
    connect,
    unreachable,
)
from harness.wire.flight import Flight
from harness.wire.grpc.tls import pinned
from harness.wire.http1 import BadReply
from harness.wire.opener import CONNECT_TIMEOUT_S, GIVE_UP_S
from harness.wire.requests import PREPARE_S, READY_BYTES, SHORT_BYTES


def _grpc() -> Any:
    try:
        import grpc
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"--url grpc://... needs the module {e.name!r}: {how_to_install('kserve-grpc')}"
        ) from e
    return grpc


_OPTIONS = (
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)


def _channel(grpc: Any, server: Server, first: Connection) -> Any:
    """Returns a grpcio channel to the address that `first` is connected to. Raises OSError."""
    peer = first.peer()
    host = f"ipv6:[{peer}]" if ":" in peer else f"ipv4:{peer}"
    target = f"{host}:{server.address.port}"
    if server.tls is None:
        authority = ("grpc.default_authority", server.address.authority)
        return grpc.insecure_channel(target, (authority, *_OPTIONS))
    credentials, options = pinned(grpc, server, first, CONNECT_TIMEOUT_S)
    return grpc.secure_channel(target, credentials, (*options, *_OPTIONS))


class Channel:
    """One HTTP/2 connection to a server, which carries any number of calls at once. Any thread may use the channel."""

    def __init__(self, server: Server, number: int = 0) -> None:
        """number: the server's number. Raises ConfigError if the server cannot be reached or does not use gRPC."""
        grpc, address = _grpc(), server.address
        try:
            # A plain connection comes first, because grpcio reports neither the cause of a failure nor the peer's
            # address.
            first = connect(server, CONNECT_TIMEOUT_S)
        except OSError as e:
            unreachable(address, e)
        self.number = number
        self.peer, self.is_local = first.peer(), first.is_local
        try:
            self._channel = _channel(grpc, server, first)
        except OSError as e:
            unreachable(address, e)
        finally:
            first.close()
        self._failure = grpc.RpcError
        self._metadata = tuple((name.lower(), value) for name, value in server.headers) or None
        self._calls: dict[str, Any] = {}
        try:
            grpc.channel_ready_future(self._channel).result(CONNECT_TIMEOUT_S)
        except grpc.FutureTimeoutError:
            self.close()
            more = ", and a certificate that has not expired" if address.tls else ""
            raise ConfigError(
                f"--url {address} does not speak gRPC: give the server's gRPC port{more}"
            ) from None

    def call(self, request: Request, timeout_s: float) -> Any:
        """Starts a call, and returns its future."""
        made = self._made(request.path)
        return made.future(_message(request), timeout=timeout_s, metadata=self._metadata)

    def reply(self, request: Request, timeout_s: float) -> Reply:
        """Makes a call and waits for its end. Raises the same errors as `reply_of`."""
        made = self._made(request.path)
        try:
            content = made(_message(request), timeout=timeout_s, metadata=self._metadata)
        except self._failure as e:
            return _refusal(e, timeout_s)
        return _reply(content)

    def _made(self, path: str) -> Any:
        made = self._calls.get(path)
        if made is None:  # bytes in and bytes out, because no serialisers are given
            made = self._calls[path] = self._channel.unary_unary(path)
        return made

    def close(self) -> None:
        self._channel.close()


def _message(request: Request) -> bytes:
    return b"".join(request.body)


def _reply(content: bytes | None) -> Reply:
    if content is None:
        raise BadReply("the call succeeded but returned no complete message")
    return Reply(0, b"", memoryview(content))


def reply_of(future: Any, timeout_s: float) -> Reply:
    """Returns the reply to a call that has ended.

    Raises LateReply if the deadline has passed, ConnectionError if the server is unavailable, and BadReply if the reply
    is not a message.
    """
    error = future.exception()
    return _refusal(error, timeout_s) if error is not None else _reply(future.result())


def _refusal(error: Any, timeout_s: float) -> Reply:
    """Returns the reply to a failed call. The call's status code determines the reply, because grpcio does not report
    whether the client or the server failed. Raises the same errors as `reply_of`.
    """
    code, text = error.code(), one_line(str(error.details() or ""))
    if code.name == "DEADLINE_EXCEEDED":
        raise LateReply(f"no reply within {timeout_s:g} s (--request-timeout)")
    if code.name == "UNAVAILABLE":
        raise ConnectionError(text)
    return Reply(code.value[0], b"", memoryview(f"{code.name}: {text}".encode()))


class CallLink:
    """One channel to a server that waits for each reply, like wire.remote_backend.Link."""

    def __init__(self, server: Server, timeout_s: float) -> None:
        self.server = server
        self._timeout_s = timeout_s
        self._channel: Channel | None = None
        self.opened = 0
        """Number of channels opened so far; a channel reconnects by itself."""

    def exchange(self, request: Request) -> Reply:
        """Makes the call and waits for it to finish. Raises OSError or BadReply; on the first call also ConfigError."""
        return self._open().reply(request, self._timeout_s)

    def open_at_start(self) -> None:
        """Connects before a run. Raises ConfigError if the server cannot be reached."""
        self._open()

    def exchange_at_start(self, request: Request) -> Reply:
        """Makes a call before a run. Raises ConfigError if the server cannot be reached or does not send a message."""
        try:
            return self.exchange(request)
        except OSError as e:
            unreachable(self.server.address, e)
        except BadReply as e:
            raise ConfigError(f"--url {self.server.address} does not speak gRPC: {e}") from e

    def _open(self) -> Channel:
        if self._channel is None:
            self._channel = Channel(self.server)
            self.opened += 1
        return self._channel

    def peer(self) -> str:
        """Returns the server's IP address, or '' before the first call."""
        return self._channel.peer if self._channel is not None else ""

    def is_local(self) -> bool:
        """Returns whether the server is on this machine."""
        return self._channel is not None and self._channel.is_local

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None


class Calls:
    """Calls in flight to one server or several replicas, over one channel per server; implements Transport.

    If only one call can be in flight, the thread that waits for the call also makes the call, which avoids two
    hand-overs between threads. Otherwise, calls end on one of grpcio's threads, which passes the calls to `turn`.
    """

    resent = reopened = 0
    outage_s = 0.0
    closes_after: Sequence[int] = ()
    refused: Mapping[int, Exception] = {}
    """These attributes exist only because Flights has them; grpcio opens connections itself, but does not report the
    connections.
    """

    def __init__(
        self,
        servers: Sequence[Server],
        connections: int,
        encode: Callable[[Sequence[int]], Request],
        timeout_s: float,
    ) -> None:
        """connections: number of calls in flight to each server. Raises the same errors as Channel."""
        self._encode = encode
        self._timeout_s = timeout_s
        self._waiting: deque[Flight] = deque()
        self._ended: SimpleQueue[tuple[Flight, Channel, Any] | None] = SimpleQueue()
        self._alone = connections * len(servers) == 1
        self._failing_since_s = 0.0
        self._ready: dict[int, Request] = {}
        self.waited, self.waited_s = 0, 0.0
        self.gone: Exception | None = None
        self.begun: list[Flight] | None = None
        """This attribute exists only because Flights has it; gRPC replies are never streams."""
        self._channels: list[Channel] = []
        try:
            for number, server in enumerate(servers):
                self._channels.append(Channel(server, number))
        except BaseException:
            self.close()
            raise
        self._free: Free[Channel] = balanced(connections, len(servers))
        for channel in self._channels * connections:
            self._free.append(channel)

    def prepare(self, indices: Sequence[int]) -> None:
        """Prepares the requests for these samples, except long requests. No other method may run at the same time."""
        self._ready.clear()
        end_s, left_bytes = monotonic() + PREPARE_S, READY_BYTES
        for index in indices:
            try:
                request = self._encode([index])
            except Exception:  # noqa: BLE001, S112 - of the plug-in or the dataset: its query fails with the reason
                continue
            message = _message(request)
            left_bytes -= len(message)
            if left_bytes < 0 or monotonic() > end_s:
                return
            if len(message) <= SHORT_BYTES:
                self._ready[index] = Request(request.path, body=[message])

    def submit(self, flight: Flight) -> None:
        """Makes the flight's call, either at once or when fewer calls are in flight."""
        self._waiting.append(flight)
        if self._alone:
            if not self._free or len(self._waiting) > 1:
                self.waited += 1
            self.wake()
            return
        self._dispatch()
        if flight.taken_ns == 0:
            self.waited += 1

    def _dispatch(self) -> None:
        waiting, free = self._waiting, self._free
        while waiting and free:
            try:
                channel = free.pop()
            except IndexError:
                return
            try:
                flight = waiting.popleft()
            except IndexError:
                # The channel is offered again, because the issuing thread may have added a flight after the first look.
                free.append(channel)
                continue
            flight.server = channel.number
            request = self._encoded(flight)
            if request is None:
                self._ended.put((flight, channel, None))
                continue
            try:
                future = channel.call(request, self._timeout_s)
            except Exception as e:  # noqa: BLE001 - of grpcio, e.g. metadata that it refuses: a failed flight
                _fail(flight, "encode", e)
                self._ended.put((flight, channel, None))
            else:
                future.add_done_callback(partial(self._end, flight, channel))

    def _encoded(self, flight: Flight) -> Request | None:
        """Returns the flight's request, or None if the request cannot be made; the flight has then failed."""
        flight.taken_ns = wall_ns()
        if self.gone is not None:
            _fail(flight, "server-gone", self.gone)
            return None
        indices = flight.indices
        ready = self._ready.get(indices[0]) if len(indices) == 1 else None
        try:
            request = ready or self._encode(indices)
        except Exception as e:  # noqa: BLE001 - of the plug-in or the dataset: a failed flight
            _fail(flight, "encode", e)
            return None
        flight.sent_ns = wall_ns()
        return request

    def _end(self, flight: Flight, channel: Channel, future: Any) -> None:
        """Passes a call that has ended to `turn`. Runs on one of grpcio's threads."""
        flight.read_ns = wall_ns()
        self._ended.put((flight, channel, future))

    def turn(self, timeout_s: float) -> list[Flight]:
        """Waits at most timeout_s, returns calls that have ended, and makes calls that were waiting."""
        return self._turn_alone(timeout_s) if self._alone else self._turn(timeout_s)

    def _turn(self, timeout_s: float) -> list[Flight]:
        done: list[Flight] = []
        before_s = monotonic()
        try:
            ended = self._ended.get(timeout=timeout_s)
            self.waited_s = monotonic() - before_s
            while True:
                if ended is not None:
                    flight, channel, future = ended
                    self._free.append(channel)
                    if future is not None:
                        self._take(flight, partial(reply_of, future, self._timeout_s))
                    done.append(flight)
                ended = self._ended.get_nowait()
        except Empty:
            self.waited_s = self.waited_s if done else monotonic() - before_s
        if self._waiting:
            self._dispatch()
        return done

    def _turn_alone(self, timeout_s: float) -> list[Flight]:
        before_s = monotonic()
        with suppress(Empty):
            self._ended.get(timeout=timeout_s)  # `submit` has queued one item per flight
        if not self._waiting:
            self.waited_s = monotonic() - before_s
            return []
        channel, flight = self._free.pop(), self._waiting.popleft()
        request = self._encoded(flight)
        if request is not None:
            self._take(flight, partial(channel.reply, request, self._timeout_s))
            flight.read_ns = wall_ns()
            self.waited_s = monotonic() - before_s
        self._free.append(channel)
        return [flight]

    def _take(self, flight: Flight, reply: Callable[[], Reply]) -> None:
        """Sets the flight's reply or its failure. Gives up on a server if all calls to the server fail for GIVE_UP_S."""
        try:
            flight.reply = reply()
        except LateReply as e:
            _fail(flight, "timeout", e)
        except ConnectionError as e:
            _fail(flight, "reset", e)
            now_s = monotonic()
            self._failing_since_s = self._failing_since_s or now_s
            if now_s - self._failing_since_s >= GIVE_UP_S:
                self.gone = self.gone or e
        except Exception as e:  # noqa: BLE001 - BadReply, or a fault of grpcio's: a failed flight
            _fail(flight, "bad-reply", e)
        else:
            self._failing_since_s = 0.0

    def wake(self) -> None:
        """Ends the wait of a `turn` that runs in another thread."""
        self._ended.put(None)

    def forget(self) -> None:
        """Resets the counts to 0 before the run."""
        self.waited = 0

    def peers(self) -> list[tuple[str, bool]]:
        """Returns each server's address, and whether the server is on this machine."""
        return [(channel.peer, channel.is_local) for channel in self._channels]

    def close(self) -> None:
        """Closes all channels. No thread may be in `submit` or `turn`."""
        for channel in self._channels:
            channel.close()


def _fail(flight: Flight, kind: str, error: Exception) -> None:
    flight.kind, flight.error = kind, error
    flight.read_ns = flight.read_ns or wall_ns()
