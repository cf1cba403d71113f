"""Encodes and decodes inference over gRPC: writes and reads Protobuf messages field by field.

Source: github.com/kserve/open-inference-protocol, specification/protocol/open_inference_grpc.proto.
"""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from harness.backends.parts.kserve.datatypes import ON_THE_WIRE, Tensor
from harness.backends.parts.kserve.decoding import Decoder, Output, wrong_rows, wrong_size
from harness.backends.parts.kserve.encoding import MOST_HEADS, REQUEST_ID, Encoder
from harness.backends.parts.kserve.values import from_bytes, from_list
from harness.core.formats.kserve_messages import (
    DATATYPE,
    ID,
    INPUTS,
    MODEL,
    NAME,
    OUTPUTS,
    PARAMETERS,
    RAW_INPUTS,
    RAW_OUTPUTS,
    SHAPE,
    VERSION,
    tensor,
)
from harness.core.formats.protobuf import (
    field,
    fields,
    number_field,
    opening,
    varint,
)
from harness.errors import one_line
from harness.remote import BadAnswer, Buffer, Refused, Reply, Request
from harness.types import Array, Batch

SERVICE = "/inference.GRPCInferenceService"

_NUMBER, _TEXT = 2, 3
"""Field numbers for the value of a parameter: an integer, a string."""


class MessageEncoder(Encoder):
    """Turns batches into ModelInfer calls with raw tensor bytes."""

    def __init__(
        self, model: str, version: str | None, inputs: Sequence[Tensor], size: int | None
    ) -> None:
        super().__init__(f"{SERVICE}/ModelInfer", inputs, size)
        named = field(MODEL, model.encode())
        if version is not None:
            named += field(VERSION, version.encode())
        self._begin = named + field(ID, REQUEST_ID.encode())
        self._openings: dict[object, bytes] = {}

    def as_message(self, batch: Batch) -> Request:
        """Returns a request in which the values follow the rest of the message."""
        arrays = self.arrays(batch)
        key = tuple([(name, rows.shape, rows.dtype) for name, rows in arrays.items()])
        head = self._openings.get(key)
        if head is None:
            self.check(arrays)
            tensors = (self._tensor(name, rows) for name, rows in arrays.items())
            head = self._begin + b"".join(field(INPUTS, tensor) for tensor in tensors)
            if len(self._openings) >= MOST_HEADS:
                self._openings.clear()
            self._openings[key] = head
        body: list[Buffer] = [head]
        for name, rows in arrays.items():
            values = self.values(name, rows)
            body += [opening(RAW_INPUTS, memoryview(values).nbytes), values]
        return Request(self.path, body=body)

    def encoder(self, _encoding: str) -> Callable[[Batch], Request]:
        return self.as_message

    def as_shared(self, region: str, batch: Batch, offset: int) -> Request:
        arrays = self.arrays(batch)
        self.check(arrays)
        message = self._begin
        for name, rows in arrays.items():
            size = memoryview(self.values(name, rows)).nbytes
            places = (
                ("shared_memory_region", field(_TEXT, region.encode())),
                ("shared_memory_offset", number_field(_NUMBER, offset)),
                ("shared_memory_byte_size", number_field(_NUMBER, size)),
            )
            parameters = (
                field(PARAMETERS, field(1, key.encode()) + field(2, value)) for key, value in places
            )
            message += field(INPUTS, self._tensor(name, rows) + b"".join(parameters))
            offset += size
        return Request(self.path, body=[message])

    def _tensor(self, name: str, rows: Array) -> bytes:
        shape = b"".join(map(varint, rows.shape))
        return (
            field(NAME, name.encode())
            + field(DATATYPE, self.datatypes[name].encode())
            + field(SHAPE, shape)
        )


class MessageDecoder(Decoder):
    """Turns replies to ModelInfer into outputs, by the same rules as for HTTP.

    A server replies with raw tensor bytes (encoding `binary`), or with lists of values of one type (`typed`).
    """

    def __init__(self, model: str, outputs: Sequence[Tensor], size: int | None) -> None:
        super().__init__(model, outputs, size)
        self._known: dict[object, Sequence[Output]] = {}

    def read(self, reply: Reply, rows: int) -> Mapping[str, Array]:
        if reply.status:
            raise Refused(reply.status, refusal_text(reply))
        others, raws = _parted(reply.body)
        outputs = self._known.get(others)
        if outputs is None:
            outputs = self.outputs_of(_content(others))
            if raws and len(outputs) != len(raws):
                raise BadAnswer(
                    f"the reply has {len(outputs)} outputs and {len(raws)} raw contents"
                )
            if len(self._known) >= MOST_HEADS:
                self._known.clear()
            if raws:
                self._known[others] = outputs
        found_rows = outputs[0][1][0]
        if found_rows != rows:
            raise wrong_rows(found_rows, rows)
        if not raws:
            return {o.name: from_list(o, shape, about["data"]) for o, shape, about in outputs}
        return {
            output.name: _values(output, shape, raw)
            for (output, shape, _), raw in zip(outputs, raws, strict=True)
        }

    def form(self, reply: Reply) -> str:
        return "binary" if _parted(reply.body)[1] else "typed"


def refusal_text(reply: Reply) -> str:
    """Returns the server's message from a reply whose status is not OK."""
    return one_line(bytes(reply.body).decode("utf-8", "replace")) or "no text"


def _parted(message: memoryview) -> tuple[tuple[tuple[int, object], ...], list[memoryview]]:
    """Returns the fields of a reply, and separately its raw contents, which differ from reply to reply."""
    others: list[tuple[int, object]] = []
    raws: list[memoryview] = []
    try:
        for number, value in fields(message):
            if isinstance(value, int):
                others.append((number, value))
            elif number == RAW_OUTPUTS:
                raws.append(value)
            else:
                others.append((number, bytes(value)))
    except ValueError as e:
        raise BadAnswer(f"the reply is not a ModelInferResponse: {e}") from e
    return tuple(others), raws


def _content(others: Sequence[tuple[int, object]]) -> Mapping[str, Any]:
    """Returns the reply without its raw contents, as JSON."""
    texts = {number: value for number, value in others if isinstance(value, bytes)}
    try:
        return {
            "model_name": texts.get(MODEL, b"").decode(),
            "model_version": texts.get(VERSION, b"").decode(),
            "outputs": [
                tensor(memoryview(v)) for n, v in others if n == OUTPUTS and isinstance(v, bytes)
            ],
        }
    except (TypeError, ValueError) as e:
        raise BadAnswer(f"the reply is not a ModelInferResponse: {one_line(e)}") from e


def _values(output: Tensor, shape: tuple[int, ...], raw: memoryview) -> Array:
    dtype = ON_THE_WIRE.get(output.datatype)
    if dtype is not None and raw.nbytes != prod(shape) * dtype.itemsize:
        raise wrong_size(output, shape, raw.nbytes)
    return from_bytes(output, shape, raw)
