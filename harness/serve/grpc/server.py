"""Serves the Open Inference Protocol over gRPC. grpcio handles the sockets, and the HTTP loop's thread runs the model."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from time import time_ns
from typing import Any, NamedTuple

from harness.core.config.parse import Endpoint
from harness.core.extras import how_to_install
from harness.errors import ConfigError, PluginUnavailable, type_and_text
from harness.serve.answers import Refusal
from harness.serve.bodies import MOST_BODY_BYTES
from harness.serve.grpc.messages import LAYOUTS, infer_reply, infer_request, message_of, named
from harness.serve.kserve import VERSION, OpenInference
from harness.serve.loop import Loop

SERVICE = "inference.GRPCInferenceService"
WAITING = 64
"""Maximum number of calls that wait for the loop, each on one thread; grpcio queues additional calls."""

_CODES = {
    400: "INVALID_ARGUMENT",
    404: "NOT_FOUND",
    413: "RESOURCE_EXHAUSTED",
}
"""Maps an HTTP status to a gRPC status; every other HTTP status becomes INTERNAL."""

_OF_A_MODEL = ("ModelMetadata", "ModelConfig")
_STATISTICS = "ModelStatistics"
"""Method that returns the statistics of one model, or of all models if the request names no model."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MOST_BODY_BYTES),
    ("grpc.max_send_message_length", -1),
    ("grpc.so_reuseport", 0),
)


class _Call(NamedTuple):
    """A call that is waiting for the loop."""

    method: str
    message: memoryview
    arrived_ns: int
    reply: "Future[bytes]"


class GrpcHandler:
    """Handles gRPC calls with the HTTP handler. The handler's loop calls `work`."""

    def __init__(self, inference: OpenInference) -> None:
        self._inference = inference
        self._waiting: deque[_Call] = deque()
        self._has_ended = False
        self.wake: Callable[[], None]
        """Wakes the loop, whose thread calls `work`."""

    def call(self, method: str, message: bytes) -> bytes:
        """Waits until the loop has computed the reply, and returns the reply. Call this on any thread except the loop's
        thread. Raises Refusal if the request is refused.
        """
        made = _Call(method, memoryview(message), time_ns(), Future())
        self._waiting.append(made)
        if self._has_ended:
            self.end()
        else:
            # the loop may just have ended, in which case `end` refuses the call
            with suppress(OSError):
                self.wake()
        return made.reply.result()

    def work(self) -> tuple[()] | None:
        """Handles one call, or returns None if no call is waiting."""
        if not self._waiting:
            return None
        made = self._waiting.popleft()
        try:
            made.reply.set_result(self._answered(made))
        except Refusal as e:
            self._inference.statistics.refused += 1
            made.reply.set_exception(e)
        except BaseException as e:
            # The error ends the loop, and also goes to the caller, whose thread would otherwise wait forever.
            made.reply.set_exception(Refusal(500, type_and_text(e)))
            raise
        return ()

    def end(self) -> None:
        """Refuses all waiting calls. Call this when the loop no longer handles calls."""
        self._has_ended = True
        while self._waiting:
            self._waiting.popleft().reply.set_exception(Refusal(503, "the server ends"))

    def _answered(self, made: _Call) -> bytes:
        taken_ns = time_ns()
        try:
            if made.method == "ModelInfer":
                return self._infer(made, taken_ns)
            return message_of(self._told(made), LAYOUTS[made.method])
        except MemoryError:
            raise Refusal(413, "the message does not fit into memory: send fewer samples") from None
        except (TypeError, ValueError) as e:
            raise Refusal(400, f"the message is not a valid {made.method} request: {e}") from None

    def _infer(self, made: _Call, taken_ns: int) -> bytes:
        inference = self._inference
        inference.check_model(*named(made.message))
        request, raws = infer_request(made.message)
        call, outputs, stamps = inference.computed_call(
            request, memoryview(b"".join(raws)), made.arrived_ns, taken_ns
        )
        reply = infer_reply(inference.model, VERSION, call.request_id, outputs)
        inference.count(call.samples, stamps, time_ns())
        return reply

    def _told(self, made: _Call) -> Mapping[str, Any]:
        inference = self._inference
        if made.method in _OF_A_MODEL or (made.method == _STATISTICS and len(made.message)):
            inference.check_model(*named(made.message))
        told: Mapping[str, Callable[[], Mapping[str, Any]]] = {
            "ServerLive": lambda: {"live": True},
            "ServerReady": lambda: {"ready": True},
            "ModelReady": lambda: {"ready": inference.has_model(*named(made.message))},
            "ServerMetadata": inference.about_server,
            "ModelMetadata": inference.about_model,
            "ModelConfig": lambda: {"config": inference.config()},
            "ModelStatistics": inference.totals,
            "RepositoryIndex": lambda: {"models": inference.index()},
        }
        return told[made.method]()


@contextmanager
def answering(handler: GrpcHandler, loop: Loop, listen: Endpoint) -> Iterator[Endpoint]:
    """Listens for calls until the `with` block ends, and yields the address. Raises ConfigError if the address cannot
    be used.
    """
    grpc = _grpc()
    handler.wake = loop.wake
    pool = ThreadPoolExecutor(WAITING, "grpc")
    server = grpc.server(pool, options=_OPTIONS)
    handlers = {
        method: grpc.unary_unary_rpc_method_handler(partial(_reply, grpc, handler, method))
        for method in ("ModelInfer", *LAYOUTS)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    try:
        port = server.add_insecure_port(str(listen))
    except RuntimeError:
        port = 0
    if not port:
        raise ConfigError(f"--grpc {listen} cannot be used: choose a different address")
    server.start()
    try:
        yield listen._replace(port=port)
    finally:
        handler.end()
        server.stop(None)
        pool.shutdown(wait=True, cancel_futures=True)


def _grpc() -> Any:
    try:
        import grpc
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"--grpc needs the module {e.name!r}: {how_to_install('kserve-grpc')}"
        ) from e
    return grpc


def _reply(grpc: Any, handler: GrpcHandler, method: str, message: bytes, context: Any) -> bytes:
    try:
        return handler.call(method, message)
    except Refusal as e:
        context.abort(getattr(grpc.StatusCode, _CODES.get(e.status, "INTERNAL")), str(e))
        raise
