"""A server of the Open Inference Protocol over gRPC, built on grpcio and Google's Protobuf: the reference for our
messages.
"""

import mmap
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Behaviour = Callable[[Any, Any, int], Any]
"""Called with grpcio's context, the ModelInferRequest and its number; returns a ModelInferResponse."""

_FIELD = descriptor_pb2.FieldDescriptorProto
_TYPES = {
    name: getattr(_FIELD, f"TYPE_{name.upper()}")
    for name in ["bool", "int32", "int64", "uint32", "uint64", "float", "double", "bytes", "string"]
}
_TENSOR = (
    "name:string 1, datatype:string 2, shape:int64* 3, parameters:Parameter* 4, contents:Contents 5"
)
_MESSAGES = {
    "Value": "flag:bool 1, number:int64 2, text:string 3",
    "Parameter": "key:string 1, value:Value 2",
    "Region": "name:string 1, key:string 2, offset:uint64 3, byte_size:uint64 4",
    "Empty": "unused:bool 1",
    "Contents": "bools:bool* 1, ints:int32* 2, longs:int64* 3, uints:uint32* 4, ulongs:uint64* 5, "
    "floats:float* 6, doubles:double* 7, texts:bytes* 8",
    "Tensor": _TENSOR,
    "Named": "name:string 1, version:string 2",
    "Ready": "ready:bool 1",
    "Server": "name:string 1, version:string 2, extensions:string* 3",
    "Model": "name:string 1, versions:string* 2, platform:string 3, inputs:Tensor* 4, outputs:Tensor* 5",
    "Configuration": "name:string 1, max_batch_size:int32 4, backend:string 17",
    "ConfigReply": "config:Configuration 1",
    "Listed": "name:string 1, version:string 2, state:string 3, reason:string 4",
    "Index": "models:Listed* 1",
    "Duration": "count:uint64 1, ns:uint64 2",
    "Durations": "success:Duration 1, fail:Duration 2, queue:Duration 3, compute_infer:Duration 5",
    "OfModel": "name:string 1, version:string 2, inference_stats:Durations 6",
    "Statistics": "model_stats:OfModel* 1",
    "InferRequest": "model_name:string 1, model_version:string 2, id:string 3, inputs:Tensor* 5, raw:bytes* 7",
    "InferReply": "model_name:string 1, model_version:string 2, id:string 3, outputs:Tensor* 5, raw:bytes* 6",
}
"""Maps a message to its fields, each with type and number; * means repeated. Source of the messages:
open_inference_grpc.proto.
"""


def _classes() -> Mapping[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax="proto3")
    for name, text in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for part in text.split(", "):
            field, number = part.split()
            label, _, kind = field.partition(":")
            made = message.field.add(name=label, number=int(number))
            made.label = _FIELD.LABEL_REPEATED if kind.endswith("*") else _FIELD.LABEL_OPTIONAL
            kind = kind.rstrip("*")
            made.type = _TYPES.get(kind, _FIELD.TYPE_MESSAGE)
            if kind not in _TYPES:
                made.type_name = f".t.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = {n: pool.FindMessageTypeByName(f"t.{n}") for n in _MESSAGES}
    return {n: message_factory.GetMessageClass(descriptor) for n, descriptor in found.items()}


MESSAGES = _classes()


def sums(_context: Any, request: Any, _nth: int = 0) -> Any:
    """Returns ten sums of each image, so that an answer depends on its sample."""
    (image,) = request.inputs
    rows = np.frombuffer(request.raw[0], np.float32).reshape(image.shape[0], -1)
    logits = np.stack([rows[:, d::10].sum(axis=1) for d in range(10)], axis=1)
    return reply([len(rows), 10], logits.astype(np.float32).tobytes())


def reply(shape: list[int], raw: bytes, datatype: str = "FP32") -> Any:
    output = {"name": "logits", "datatype": datatype, "shape": shape}
    return MESSAGES["InferReply"](
        model_name="digits", model_version="1", outputs=[output], raw=[raw]
    )


def refuse(code: str, text: str) -> Behaviour:
    """Replies with an error status instead of an answer."""

    def refused(context: Any, _request: Any, _nth: int) -> Any:
        context.abort(getattr(grpc.StatusCode, code), text)

    return refused


def late(seconds: float) -> Behaviour:
    """Answers after a delay."""

    def slow(context: Any, request: Any, nth: int) -> Any:
        time.sleep(seconds)
        return sums(context, request, nth)

    return slow


class GrpcServer:
    """Serves `digits` at `url` until the block ends or `stop` is called."""

    def __init__(
        self,
        infer: Behaviour = sums,
        *,
        max_batch: int = 64,
        tls: tuple[bytes, bytes] | None = None,
    ) -> None:
        """tls: key and certificates (PEM); the first certificate must be for `localhost`."""
        self.infer = infer
        self._max_batch = max_batch
        self._count = 0
        self.asked: list[Any] = []
        """The requests that the server received last."""
        self.regions: dict[str, mmap.mmap] = {}
        """Shared memory on this machine that clients have registered."""
        self._pool = ThreadPoolExecutor(16)
        self._server = grpc.server(self._pool)
        methods: Mapping[str, Callable[[Any, Any], Any]] = {
            "ServerReady": self._ready,
            "ServerMetadata": self._about,
            "ModelMetadata": self._model,
            "ModelConfig": self._config,
            "RepositoryIndex": self._index,
            "ModelStatistics": self._statistics,
            "ModelInfer": self._answer,
            "SystemSharedMemoryStatus": lambda *_: MESSAGES["Empty"](),
            "SystemSharedMemoryRegister": self._register,
            "SystemSharedMemoryUnregister": self._unregister,
        }
        takes = {"ModelInfer": "InferRequest", "SystemSharedMemoryRegister": "Region"}
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                handler,
                MESSAGES[takes.get(method, "Named")].FromString,
                lambda made: made.SerializeToString(),
            )
            for method, handler in methods.items()
        }
        service = "inference.GRPCInferenceService"
        self._server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler(service, handlers),)
        )
        if tls is None:
            self.url = f"grpc://127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        else:
            credentials = grpc.ssl_server_credentials([tls])
            port = self._server.add_secure_port("127.0.0.1:0", credentials)
            self.url = f"grpcs://localhost:{port}"

    def __enter__(self) -> Self:
        self._server.start()
        return self

    def __exit__(self, *_error: object) -> None:
        self._server.stop(None)  # the call does not wait, because grpcio's thread ends 0.2 s later
        self._pool.shutdown(wait=True, cancel_futures=True)

    def stop(self) -> None:
        """Ends all connections, and refuses new ones."""
        self._server.stop(None).wait()

    def _ready(self, _request: Any, _context: Any) -> Any:
        return MESSAGES["Ready"](ready=True)

    def _about(self, _request: Any, _context: Any) -> Any:
        return MESSAGES["Server"](name="triton", version="2.51.0", extensions=["statistics"])

    def _model(self, request: Any, context: Any) -> Any:
        if request.name != "digits" or request.version not in ("", "1"):
            context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model {request.name!r}")
        image = {"name": "image", "datatype": "FP32", "shape": [-1, 1, 8, 8]}
        logits = {"name": "logits", "datatype": "FP32", "shape": [-1, 10]}
        more = {"versions": ["1"], "platform": "python"}
        return MESSAGES["Model"](name="digits", inputs=[image], outputs=[logits], **more)

    def _config(self, _request: Any, _context: Any) -> Any:
        config = {"name": "digits", "max_batch_size": self._max_batch, "backend": "python"}
        return MESSAGES["ConfigReply"](config=config)

    def _index(self, _request: Any, _context: Any) -> Any:
        listed = [{"name": "digits", "version": "1", "state": "READY"}]
        return MESSAGES["Index"](models=listed)

    def _statistics(self, _request: Any, _context: Any) -> Any:
        stats = {
            "success": {"count": 3, "ns": 109},
            "queue": {"count": 3, "ns": 32},
            "compute_infer": {"count": 3, "ns": 43},
        }
        return MESSAGES["Statistics"](model_stats=[{"name": "digits", "inference_stats": stats}])

    def _register(self, request: Any, context: Any) -> Any:
        try:
            with Path("/dev/shm", request.key.strip("/")).open("rb") as file:
                size = request.byte_size
                self.regions[request.name] = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        except OSError:
            text = f"Unable to open shared memory region: {request.key!r}"
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, text)
        return MESSAGES["Empty"]()

    def _unregister(self, request: Any, _context: Any) -> Any:
        if request.name in self.regions:
            self.regions.pop(request.name).close()
        return MESSAGES["Empty"]()

    def _answer(self, request: Any, context: Any) -> Any:
        for tensor in request.inputs:
            place = {each.key: each.value for each in tensor.parameters}
            if place:
                begin = place["shared_memory_offset"].number
                end = begin + place["shared_memory_byte_size"].number
                region = self.regions[place["shared_memory_region"].text]
                request.raw.append(region[begin:end])
        self._count += 1
        self.asked = [*self.asked[-9:], request]
        return self.infer(context, request, self._count)
