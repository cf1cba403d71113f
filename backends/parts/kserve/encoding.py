"""Encodes batches as inference requests of the Open Inference Protocol v2, in JSON or with binary tensors."""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from harness.backends.parts.kserve.datatypes import NAMES, ON_THE_WIRE, TEXT, Tensor
from harness.remote import Buffer, Headers, Request
from harness.types import Array, Batch

REQUEST_ID = "0"
"""The id of every request. Models built with the KServe SDK copy the id into their replies, and fail if the id is
missing.
"""

MOST_HEADS = 4096
"""Maximum number of cached request heads; inputs of varying shape need several heads."""

_JSON = (("Content-Type", "application/json"),)


class Encoder:
    """Turns batches into requests of one model.

    Any thread may call an encoder. Raises ValueError if a batch does not fit the inputs.
    """

    def __init__(self, path: str, inputs: Sequence[Tensor], size: int | None) -> None:
        """path: the path for inference. size: the model's fixed batch; None if any batch is accepted."""
        self.path = path
        self.datatypes = {tensor.name: tensor.datatype for tensor in inputs}
        self._size = size
        self._holds_texts = TEXT in self.datatypes.values()
        self._wire = {
            name: ON_THE_WIRE[datatype]
            for name, datatype in self.datatypes.items()
            if datatype != TEXT
        }
        self._heads: dict[object, tuple[bytes, Headers]] = {}

    def encoder(self, encoding: str) -> Callable[[Batch], Request]:
        """Returns the function that encodes batches. encoding: binary or json."""
        if encoding == "json":
            return self.as_json
        return self.as_binary_texts if self._holds_texts else self.as_binary

    def as_binary(self, batch: Batch) -> Request:
        """Returns a request in which the values follow the JSON part. Arrays are sent without a copy."""
        arrays = self.arrays(batch)
        key = tuple([(name, rows.shape, rows.dtype) for name, rows in arrays.items()])
        head = self._heads.get(key)
        if head is None:
            self.check(arrays)
            sizes = {name: rows.size * self._wire[name].itemsize for name, rows in arrays.items()}
            head = self._head(arrays, sizes)
            if len(self._heads) >= MOST_HEADS:
                self._heads.clear()
            self._heads[key] = head
        wire = self._wire
        body: list[Buffer] = [head[0]]
        for name, rows in arrays.items():
            body.append(
                np.ascontiguousarray(rows, wire[name]).data
            )  # rarely copies, because the array is usually a view of the dataset's bytes
        return Request(self.path, head[1], body)

    def as_binary_texts(self, batch: Batch) -> Request:
        """Returns a binary request for models with string inputs, whose sizes differ from batch to batch."""
        arrays = self.arrays(batch)
        self.check(arrays)
        values = {name: self.values(name, rows) for name, rows in arrays.items()}
        sizes = {name: memoryview(part).nbytes for name, part in values.items()}
        text, headers = self._head(arrays, sizes)
        return Request(self.path, headers, [text, *values.values()])

    def as_json(self, batch: Batch) -> Request:
        """Returns a request with all values as JSON. Raises a ValueError for NaN and infinity, which JSON lacks."""
        arrays = self.arrays(batch)
        self.check(arrays)
        inputs = [
            {**self._about(name, rows), "data": _plain(name, rows)} for name, rows in arrays.items()
        ]
        content = {"id": REQUEST_ID, "inputs": inputs}
        return Request(self.path, _JSON, [_compact(content, allow_nan=False)])

    def as_shared(self, region: str, batch: Batch, offset: int) -> Request:
        """Returns a request that contains only the positions of the values in a shared region of memory: the inputs in
        order, from `offset`.
        """
        arrays = self.arrays(batch)
        self.check(arrays)
        inputs = []
        for name, rows in arrays.items():
            size = memoryview(self.values(name, rows)).nbytes
            place = {
                "shared_memory_region": region,
                "shared_memory_offset": offset,
                "shared_memory_byte_size": size,
            }
            inputs.append({**self._about(name, rows), "parameters": place})
            offset += size
        text, headers = _binary(inputs)
        return Request(self.path, headers, [text])

    def _head(self, arrays: Mapping[str, Array], sizes: Mapping[str, int]) -> tuple[bytes, Headers]:
        """Returns the JSON part of a binary request, and the headers. sizes: the size of each input's values in bytes."""
        return _binary(
            [
                {**self._about(name, rows), "parameters": {"binary_data_size": sizes[name]}}
                for name, rows in arrays.items()
            ]
        )

    def _about(self, name: str, rows: Array) -> dict[str, object]:
        return {"name": name, "shape": list(rows.shape), "datatype": self.datatypes[name]}

    def values(self, name: str, rows: Array) -> Buffer:
        """Returns an input's values as a binary tensor, usually the dataset's own bytes."""
        if name in self._wire:
            return np.ascontiguousarray(rows, self._wire[name]).data
        return _prefixed(rows)

    def arrays(self, batch: Batch) -> Mapping[str, Array]:
        """Returns the inputs, padded if the model has a fixed batch."""
        return batch.inputs if self._size is None else self._padded(batch, self._size)

    def check(self, arrays: Mapping[str, Array]) -> None:
        """Refuses inputs that the model lacks, and types that the server would interpret differently."""
        for name, rows in arrays.items():
            if name not in self.datatypes:
                raise ValueError(
                    f"the batch has the input {name!r}, but the server's model has {', '.join(self.datatypes)}"
                )
            datatype = self.datatypes[name]
            fits = (
                rows.dtype.kind in "OUS"
                if datatype == TEXT
                else rows.dtype.newbyteorder("<") == self._wire[name]
            )
            if not fits:
                raise ValueError(
                    f"input {name!r} is {rows.dtype}, but the server's model takes {NAMES[datatype]}"
                )

    @staticmethod
    def _padded(batch: Batch, size: int) -> Mapping[str, Array]:
        """Returns the inputs with the last row repeated up to the model's fixed batch."""
        if batch.size == size:
            return batch.inputs
        if batch.size > size:
            raise ValueError(
                f"the batch has {batch.size} samples, but the server's model takes exactly {size}"
            )
        return {
            name: np.concatenate([rows, np.repeat(rows[-1:], size - batch.size, axis=0)])
            for name, rows in batch.inputs.items()
        }


def _binary(inputs: Sequence[Mapping[str, object]]) -> tuple[bytes, Headers]:
    """Returns the headers and the JSON part of a request for a binary reply."""
    content = {"id": REQUEST_ID, "inputs": inputs, "parameters": {"binary_data_output": True}}
    text = _compact(content)
    headers = (
        ("Content-Type", "application/octet-stream"),  # the KServe SDK answers 422 to other types
        ("Inference-Header-Content-Length", str(len(text))),
    )
    return text, headers


def _compact(content: object, *, allow_nan: bool = True) -> bytes:
    return json.dumps(content, separators=(",", ":"), allow_nan=allow_nan).encode()


def _prefixed(rows: Array) -> bytes:
    """Returns each string in UTF-8, preceded by its length in 4 bytes (little-endian)."""
    parts = []
    for value in rows.reshape(-1).tolist():
        text = value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
        parts += [len(text).to_bytes(4, "little"), text]
    return b"".join(parts)


def _plain(name: str, rows: Array) -> list[Any]:
    """Returns the values as one flat list, which every server accepts."""
    values: list[Any] = rows.reshape(-1).tolist()
    if rows.dtype.kind not in "OS":
        return values
    try:
        return [v.decode() if isinstance(v, bytes) else v for v in values]
    except UnicodeDecodeError as e:
        raise ValueError(
            f"input {name!r} has bytes that are not UTF-8, which JSON cannot represent"
        ) from e
