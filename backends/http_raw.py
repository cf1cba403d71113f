"""Sends the bytes of samples over HTTP to servers that reply with bytes."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from harness.backends.parts.refusals import refused
from harness.backends.parts.remote_options import answer_shape, setup_problems
from harness.core.number_types import BITS, number_type
from harness.errors import ConfigError, refuse
from harness.remote import BadAnswer, Exchange, Remote, Reply, Request
from harness.types import Array, BackendSetup, Batch

_OPTIONS = {
    "path": "/PATH",
    "content_type": "TYPE",
    "dtype": "NAME",
    "shape": "SIZExSIZE",
}
_NO_ANSWERS = ("bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "bool")
"""Number types refused for answers: NumPy lacks them, or some byte values are not valid in them."""

_OK = 200


class HttpRawRemote:
    """One address that accepts the bytes of a model's only input, in C order and little-endian.

    The rows of a batch are sent one after another. The answers must be in the same order. Strings are sent as UTF-8,
    one per request.

    path: the URL path of each request.
    content_type: the value of the header Content-Type.
    dtype: the number type of the answers.
    shape: the shape of one answer, such as `10` or `3x4`; if omitted, an answer is one number.
    """

    def __init__(self, setup: BackendSetup) -> None:
        refuse(setup_problems("http-raw", setup, _OPTIONS))
        options = setup.options
        self._path = options.get("path", "/")
        if not self._path.startswith("/"):
            raise ConfigError(f"--backend-option path: {self._path!r} does not begin with /")
        self._dtype = _dtype(options.get("dtype", "float32"))
        sizes = answer_shape(options["shape"]) if "shape" in options else ()
        self._shape = tuple(size for size in sizes if size is not None)
        self._row_bytes = prod(self._shape) * self._dtype.itemsize
        self._headers = (("Content-Type", options.get("content_type", "application/octet-stream")),)
        if len(setup.inputs) > 1:
            names = ", ".join(spec.name for spec in setup.inputs)
            raise ConfigError(
                f"backend 'http-raw' sends one input, but model {setup.model_name!r} has {names}: use "
                "a KServe v2 server and --backend kserve"
            )
        if setup.max_batch > 1 and any(spec.dtype == "string" for spec in setup.inputs):
            raise ConfigError("backend 'http-raw' sends one string per request: set --max-batch 1")

    def open(self, exchange: Exchange) -> None:
        """Sends no request, because the server does not describe itself."""

    def request(self, batch: Batch) -> Request:
        if len(batch.inputs) != 1:
            raise ValueError(f"one input can be sent, but the batch has {', '.join(batch.inputs)}")
        (rows,) = batch.inputs.values()
        if rows.dtype.kind in "OUS":
            return Request(self._path, self._headers, (_text(rows),))
        if not (rows.flags.c_contiguous and rows.dtype.isnative):
            rows = np.ascontiguousarray(rows, rows.dtype.newbyteorder("<"))
        return Request(self._path, self._headers, (rows.data,))

    def answer(self, reply: Reply, samples: int) -> Array:
        if reply.status != _OK:
            raise refused(reply)
        if len(reply.body) != samples * self._row_bytes:
            raise BadAnswer(
                f"the reply has {len(reply.body)} bytes, but {samples} x {self._dtype.name} of shape "
                f"{list(self._shape)} have {samples * self._row_bytes}: see --backend-option dtype "
                "and shape"
            )
        return np.ndarray((samples, *self._shape), self._dtype, reply.body).copy()

    def describe(self) -> Mapping[str, object]:
        return {
            "framework": "unknown",
            "protocol": "bytes over HTTP",
            "device": "remote",
            "precision": "unknown",
            "path": self._path,
            "answer": f"{self._dtype.name} of shape {list(self._shape)}",
        }


def _text(rows: Array) -> bytes:
    if rows.size != 1:
        raise ValueError(f"a request can carry one string, but the batch has {rows.size}")
    value = rows.reshape(-1).tolist()[0]
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _dtype(name: str) -> np.dtype[Any]:
    plain = number_type(name)
    if plain not in BITS or plain in _NO_ANSWERS:
        have = ", ".join(known for known in BITS if known not in _NO_ANSWERS)
        raise ConfigError(f"--backend-option dtype: {name!r} is not one of {have}")
    return np.dtype(plain).newbyteorder("<")


_: type[Remote] = HttpRawRemote
