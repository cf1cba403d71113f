"""Sends samples to servers of the KServe (Open Inference) protocol v2, over HTTP or gRPC."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.backends.parts.kserve import regions, server
from harness.backends.parts.kserve.datatypes import TEXT, Tensor, declared
from harness.backends.parts.kserve.decoding import Decoder
from harness.backends.parts.kserve.encoding import Encoder
from harness.backends.parts.kserve.infer_messages import MessageDecoder, MessageEncoder
from harness.backends.parts.kserve.transcoding import transcoded
from harness.backends.parts.remote_options import setup_problems
from harness.errors import ConfigError, one_line, refuse
from harness.remote import (
    BadAnswer,
    Buffer,
    Exchange,
    HasName,
    HasTotals,
    Refused,
    Remote,
    Reply,
    Request,
    ServerTotals,
    SharesSamples,
)
from harness.types import BackendSetup, Batch, Outputs, TensorSpec, fixed_batch

_ENCODINGS = ("binary", "json")
"""Encodings, in order of preference."""

_SHARED = "shm"
_OPTIONS = {"served": "NAME", "version": "VERSION", "encoding": "|".join((*_ENCODINGS, _SHARED))}

_BUSY = (429, 502, 503, 504)
"""Statuses of a busy or unavailable server; such replies say nothing about the encoding."""

_GRPC = "grpc"
_OK = 200
_DONE = (_OK, 0)
"""Statuses that mean success, over HTTP and over gRPC."""


class KserveRemote:
    """One model on a server of the protocol, such as Triton, MLServer or KServe.

    served: the server's name for the model. Default: the manifest's name.
    version: the version of the model. By default, the server chooses the version, and all answers must come from the
    same version.
    encoding: binary sends the tensors' bytes; json sends text, which is slower. By default, a request with one sample
    of zeros shows whether the server accepts binary tensors. A server may reply in either encoding. Over gRPC, tensors
    are always binary. With shm, a server on this machine reads the samples from shared memory, and requests contain
    only the positions of the samples.
    """

    transports = ("http", _GRPC)

    def __init__(self, setup: BackendSetup) -> None:
        refuse(setup_problems("kserve", setup, _OPTIONS))
        encoding = setup.options.get("encoding")
        if encoding not in (None, *_ENCODINGS, _SHARED):
            raise ConfigError(
                f"--backend-option encoding: {encoding!r} is not one of "
                f"{', '.join((*_ENCODINGS, _SHARED))}"
            )
        self._is_grpc = setup.transport == _GRPC
        if self._is_grpc and encoding == "json":
            raise ConfigError(
                "--backend-option encoding=json: tensors over gRPC are binary: drop the option"
            )
        self.shares = encoding == _SHARED
        if self.shares and setup.max_batch > 1:
            raise ConfigError(
                f"--backend-option encoding=shm: a request has one sample: drop --max-batch "
                f"{setup.max_batch}"
            )
        self._setup = setup
        self._model = setup.options.get("served", setup.model_name)
        self._version = setup.options.get("version")
        self._encodings = _ENCODINGS if encoding is None else (encoding,)
        if self._is_grpc or self.shares:
            self._encodings = ("binary",)

    @staticmethod
    def by_paths(exchange: Exchange) -> Exchange:
        """Returns an exchange that translates requests for HTTP paths below /v2, except `infer`, into gRPC calls.
        exchange: makes the gRPC calls.
        """
        return transcoded(exchange)

    def open(self, exchange: Exchange) -> None:
        ask = transcoded(exchange) if self._is_grpc else exchange
        served = server.ask(ask, self._model, self._version)
        if served.max_batch is not None and self._setup.max_batch > served.max_batch:
            raise ConfigError(
                f"the server's model {self._model!r} takes at most {served.max_batch} samples per request: "
                f"pass --max-batch {served.max_batch}"
            )
        inputs = served.inputs or tuple(declared(spec) for spec in self._setup.inputs)
        if not inputs:
            raise ConfigError(
                f"the server does not report the inputs of model {self._model!r}: pass --model FILE.yaml, "
                "a manifest that lists them"
            )
        self._served = served
        self._may_share(exchange)
        self._inputs = tuple(tensor.spec() for tensor in inputs)
        self._probe(exchange, inputs)

    def _may_share(self, exchange: Exchange) -> None:
        if self.shares and exchange(regions.status(self._setup.transport)).status not in _DONE:
            raise ConfigError(
                "--backend-option encoding=shm: the server has no system shared memory: drop the option"
            )

    def _probe(self, exchange: Exchange, inputs: Sequence[Tensor]) -> None:
        """Sends one sample of zeros to find out the encoding and the form of the replies.

        The server's list of extensions is not used, because some servers accept binary tensors without listing them.
        """
        size = fixed_batch(self._inputs)
        if self.shares and size not in (None, 1):
            raise ConfigError(
                f"--backend-option encoding=shm: a request has one sample, but the server's model takes {size}"
            )
        self._shared = self._encoder(inputs, size)
        batch = _zeros(inputs, {spec.name: spec for spec in self._setup.inputs})
        refusals = []
        for encoding in self._encodings:
            encode = self._encoder(inputs, size).encoder(encoding)
            new = MessageDecoder if self._is_grpc else Decoder
            decoder = new(self._model, self._served.outputs, size)
            try:
                decoder.first(exchange(encode(batch)), batch.size)
            except (Refused, BadAnswer) as e:
                refusals.append(f"{encoding}: {one_line(e)}")
                if isinstance(e, Refused) and e.status in _BUSY:
                    break
                continue
            self._encoding, self._encode, self._decode = encoding, encode, decoder
            return
        raise ConfigError(
            f"model {self._model!r} did not answer one sample of zeros: {'; '.join(refusals)}"
        )

    def parts(self, batch: Batch) -> Sequence[Buffer]:
        encoder = self._shared
        return [encoder.values(name, rows) for name, rows in encoder.arrays(batch).items()]

    def request_at(self, region: str, batch: Batch, offset: int) -> Request:
        return self._shared.as_shared(region, batch, offset)

    @staticmethod
    def attach(region: str, size_bytes: int, transport: str = "http") -> Request:
        return regions.attach(region, size_bytes, transport)

    @staticmethod
    def detach(region: str, transport: str = "http") -> Request:
        return regions.detach(region, transport)

    def _encoder(self, inputs: Sequence[Tensor], size: int | None) -> Encoder:
        if self._is_grpc:
            return MessageEncoder(self._model, self._version, inputs, size)
        return Encoder(f"{self._served.path}/infer", inputs, size)

    def request(self, batch: Batch) -> Request:
        return self._encode(batch)

    def answer(self, reply: Reply, samples: int) -> Outputs:
        return self._decode(reply, samples)

    def signature(self) -> tuple[TensorSpec, ...]:
        return self._inputs

    def outputs(self) -> tuple[str, ...]:
        return self._decode.names

    def totals(self, exchange: Exchange) -> ServerTotals | None:
        ask = transcoded(exchange) if self._is_grpc else exchange
        return server.totals(ask, self._served.path)

    def name(self, exchange: Exchange) -> str:
        return server.name(transcoded(exchange) if self._is_grpc else exchange)

    def describe(self) -> Mapping[str, object]:
        told = self._served.properties
        threads = {"threads": str(told["threads"])} if "threads" in told else {}
        return {
            "framework": self._served.server,
            "protocol": f"KServe v2 over {'gRPC' if self._is_grpc else 'HTTP'}",
            "device": "remote",
            "precision": str(told.get("precision", "unknown")),
            **threads,
            "model": self._model,
            "model_version": self._decode.version or "unknown",
            "platform": self._served.platform,
            "encoding": _SHARED if self.shares else self._encoding,
            "reply_encoding": self._decode.encoding,
            "server_max_batch": self._served.max_batch,
        }


def _zeros(inputs: Sequence[Tensor], in_manifest: Mapping[str, TensorSpec]) -> Batch:
    """Returns one sample of zeros. A size is 1 if neither the manifest nor the server states the size."""
    arrays = {}
    for tensor in inputs:
        shape = tensor.shape or ()
        spec = in_manifest.get(tensor.name)
        if spec is not None and len(spec.shape) == len(shape):
            shape = tuple(
                a if isinstance(a, int) else b for a, b in zip(spec.shape, shape, strict=True)
            )
        sizes = (1, *(size if isinstance(size, int) else 1 for size in shape[1:]))
        if tensor.datatype == TEXT:
            arrays[tensor.name] = np.full(sizes, "", object)
        else:
            arrays[tensor.name] = np.zeros(sizes, tensor.spec().dtype)
    return Batch(1, arrays)


_: type[Remote] = KserveRemote
_totals: type[HasTotals] = KserveRemote
_name: type[HasName] = KserveRemote
_shares: type[SharesSamples] = KserveRemote
