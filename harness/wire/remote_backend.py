"""Turns a remote plug-in into a backend with one blocking connection, for warm-up, calibration and profiles."""

import select
from collections.abc import Mapping, Sequence
from time import monotonic
from types import TracebackType
from typing import Any, Self

from harness.errors import ConfigError, one_line
from harness.remote import BadAnswer, HasTotals, Refused, Remote, Reply, Request, ServerTotals
from harness.types import Batch, HasOutputs, HasSignature, Outputs, TensorSpec
from harness.wire.connections import (
    Connection,
    LateReply,
    Server,
    connect,
    size_bytes,
    unreachable,
)
from harness.wire.grpc.calls import CallLink
from harness.wire.http1 import BadReply, EncodedReply, Heads
from harness.wire.opener import CONNECT_TIMEOUT_S

_BUSY = (429, 503)
_SERVER_ERROR = 500
"""With this status or a higher one, the server reports that it failed itself."""

_LOG = "read the server's log"
_HINT = f"check the model's inputs, or {_LOG}"
_ANSWER_HINT = f"check the model's inputs and the backend's options, or {_LOG}"


class Link:
    """One connection that waits for each reply, and reconnects if the server has closed it."""

    def __init__(self, server: Server, timeout_s: float, option: str = "--request-timeout") -> None:
        """option: the option that sets `timeout_s`, or '' without such an option."""
        self.server = server
        self._set_by = f" ({option})" if option else ""
        self._heads = Heads(server.address.authority, server.address.prefix, server.headers)
        self._timeout_s = timeout_s
        self._connection: Connection | None = None
        self._poll = select.poll()
        self._peer, self._is_local = "", False
        self.opened = 0
        """Number of connections opened so far."""

    def exchange(self, request: Request) -> Reply:
        """Sends the request and waits for the reply. Raises OSError or BadReply."""
        used = self._connection
        if used is not None:
            try:
                return self._exchange(used, request)
            except (BadReply, OSError) as e:
                self.close()
                # A server may close an idle connection just when a request is sent on it. The request is therefore sent
                # again, unless a reply had begun or timed out.
                if used.parser.began or isinstance(e, LateReply):
                    raise
        return self._exchange(self._opened(), request)

    def open_at_start(self) -> None:
        """Connects before a run. Raises ConfigError if the server cannot be reached."""
        try:
            self._opened()
        except OSError as e:
            unreachable(self.server.address, e)

    def _opened(self) -> Connection:
        connection = self._connection = connect(self.server, CONNECT_TIMEOUT_S)
        self.opened += 1
        self._peer, self._is_local = connection.peer(), connection.is_local
        self._poll = select.poll()
        self._poll.register(connection.fd, select.POLLIN)
        return connection

    def exchange_at_start(self, request: Request) -> Reply:
        """Sends a request and waits for the reply before a run. Raises ConfigError if the server cannot be reached or
        does not use HTTP.
        """
        try:
            return self.exchange(request)
        except OSError as e:
            unreachable(self.server.address, e)
        except EncodedReply as e:
            raise ConfigError(f"--url {self.server.address}: {e}") from e
        except BadReply as e:
            raise ConfigError(
                f"--url {self.server.address} does not speak HTTP/1.1 ({e}): {_LOG}"
            ) from e

    def _exchange(self, connection: Connection, request: Request) -> Reply:
        length = sum(map(size_bytes, request.body))
        head = self._heads.head(request, length)
        deadline_s = monotonic() + self._timeout_s
        connection.post((head, *request.body))
        done = connection.flush()
        while not done:
            self._poll.modify(connection.fd, select.POLLIN | select.POLLOUT)
            self._wait(deadline_s)
            done = connection.flush()
            if done:
                self._poll.modify(connection.fd, select.POLLIN)
        while True:
            self._wait(deadline_s)
            try:
                data, _ = connection.receive()
            except BlockingIOError:
                continue
            reply = connection.parser.feed(data) if data else connection.parser.close()
            if reply is not None:
                connection.replies += 1
                if connection.parser.closes or not data:
                    self.close()
                return reply
            if not data:
                raise ConnectionResetError("the server closed the connection before its reply")

    def _wait(self, deadline_s: float) -> None:
        left_s = deadline_s - monotonic()
        if left_s <= 0 or not self._poll.poll(left_s * 1000):
            self.close()
            raise LateReply(f"no reply within {self._timeout_s:g} s{self._set_by}")

    def peer(self) -> str:
        """Returns the server's IP address, or '' for a Unix socket and before the first request."""
        return self._peer

    def is_local(self) -> bool:
        """Returns whether the server is on this machine."""
        return self._is_local

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def link_to(server: Server, timeout_s: float) -> Link | CallLink:
    """Returns a connection to a server over HTTP or gRPC; the connection opens when it is first used."""
    return CallLink(server, timeout_s) if server.address.grpc else Link(server, timeout_s)


def _is_fault_of_server(status: int) -> bool:
    return status >= _SERVER_ERROR and status not in _BUSY


class RemoteBackend:
    """A `Backend` that sends one batch at a time to one server."""

    def __init__(
        self,
        remote: Remote,
        server: Server,
        timeout_s: float,
        *,
        is_open: bool = False,
    ) -> None:
        """is_open: whether another backend has already opened the plug-in."""
        self.remote = remote
        self._link = link_to(server, timeout_s)
        self._timeout_s = timeout_s
        self._is_open = is_open
        self._sent = self._failed = 0

    def twin(self) -> Self:
        """Returns a backend with a separate connection and the same plug-in, which must be open."""
        return type(self)(self.remote, self._link.server, self._timeout_s, is_open=True)

    def __enter__(self) -> Self:
        if self._is_open:
            return self
        try:
            self._link.open_at_start()
            self.remote.open(self._link.exchange_at_start)
        except BaseException:
            self._link.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._link.close()

    def infer(self, batch: Batch) -> Outputs:
        """Sends a batch, and sends it once more if the server reports that it failed itself. Raises ConfigError if the
        server does not answer.
        """
        try:
            return self._answer_at_second_try(batch)
        except (Refused, BadAnswer) as e:
            raise ConfigError(f"--url {self._link.server.address}: {self._reason(e)}") from e

    def _answer_at_second_try(self, batch: Batch) -> Outputs:
        try:
            return self._answer(batch)
        except Refused as e:
            # A fault of the server need not be due to a wrong configuration. A run counts its own requests that fail.
            if not _is_fault_of_server(e.status):
                raise
        return self._answer(batch)

    def _answer(self, batch: Batch) -> Outputs:
        reply = self.reply(batch)
        self._sent += 1
        try:
            return self.remote.answer(reply, batch.size)
        except (Refused, BadAnswer):
            self._failed += 1
            raise

    def _reason(self, error: Refused | BadAnswer) -> str:
        """Returns the end of the message for an unusable reply."""
        text = one_line(error)
        if isinstance(error, BadAnswer):
            return f"{text}: {_ANSWER_HINT}"
        if error.status in _BUSY:
            return f"{text}: it is busy or limits the rate: run again when it answers"
        if not _is_fault_of_server(error.status):
            return f"{text}: {_HINT}"
        # The inputs cannot be at fault if the server has answered others.
        hint = _HINT if self._failed == self._sent else _LOG
        return f"{text} ({self._failed} of {self._sent} test requests failed): {hint}"

    def reply(self, batch: Batch) -> Reply:
        """Returns the server's reply to a batch. Raises ConfigError if no reply arrives."""
        request = self.remote.request(batch)
        try:
            return self._link.exchange(request)
        except OSError as e:
            unreachable(self._link.server.address, e)
        except BadReply as e:
            raise ConfigError(f"--url {self._link.server.address}: {one_line(e)}: {_LOG}") from e

    def totals(self) -> ServerTotals | None:
        """Returns the server's statistics, or None if the server has none or does not respond now."""
        if not isinstance(self.remote, HasTotals):
            return None
        try:
            return self.remote.totals(self._link.exchange)
        except Exception:  # noqa: BLE001 - of a plug-in or a server; the run does not need them
            return None

    @property
    def server(self) -> Server:
        return self._link.server

    def peer(self) -> str:
        """Returns the server's IP address, or '' for a Unix socket."""
        return self._link.peer()

    def describe(self) -> Mapping[str, Any]:
        about = self.remote.describe()
        device = str(about.get("device", ""))
        if not device.startswith("remote"):
            raise ConfigError(
                f"describe() of {type(self.remote).__name__} returns the device {device!r}, but a server answers: "
                "return a device that begins with `remote`"
            )
        return {**about, "url": str(self._link.server.address)}


class SignedRemoteBackend(RemoteBackend):
    """A RemoteBackend whose server reports the model's inputs."""

    def signature(self) -> tuple[TensorSpec, ...]:
        assert isinstance(self.remote, HasSignature)
        return self.remote.signature()

    def outputs(self) -> Sequence[str]:
        return self.remote.outputs() if isinstance(self.remote, HasOutputs) else ()


def remote_backend(
    remote: Remote, server: Server, timeout_s: float, *, is_open: bool = False
) -> RemoteBackend:
    """Returns a backend for `server` with this plug-in. is_open: whether another backend has already opened the
    plug-in.
    """
    cls = SignedRemoteBackend if isinstance(remote, HasSignature) else RemoteBackend
    return cls(remote, server, timeout_s, is_open=is_open)
