"""Decodes replies of the Open Inference Protocol v2 in all forms that servers use."""

import json
from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from harness.backends.parts.kserve.datatypes import NAMES, ON_THE_WIRE, TEXT, Tensor
from harness.backends.parts.kserve.values import from_bytes, from_list, shown
from harness.backends.parts.refusals import refused, words
from harness.remote import BadAnswer, Refused, Reply
from harness.types import Array, Outputs, show_shape

MOST_LAYOUTS = 1024
"""Maximum number of cached JSON parts of binary replies; the cache is limited because a server may put a new id into
each reply.
"""

Output = tuple[Tensor, tuple[int, ...], Mapping[str, Any]]
"""The metadata of an output, its shape in the reply, and its part of the reply's JSON."""

_LENGTH = b"\r\ninference-header-content-length:"
_OK = 200


class _Place(NamedTuple):
    """The position of one output's values in a binary reply."""

    output: Tensor
    shape: tuple[int, ...]
    start: int
    """Offset of the values in bytes, from the end of the JSON part."""
    size: int
    """Size of the values in bytes."""


class _Layout(NamedTuple):
    """The content of the JSON part of a binary reply."""

    rows: int
    """The first dimension of every output."""
    size: int
    """Number of bytes after the JSON part."""
    plain: Sequence[tuple[str, tuple[int, ...], np.dtype[Any], int]] | None
    """Name, shape, type and start of each output; None if the bytes of an output are not a NumPy array."""
    places: Sequence[_Place]
    in_json: Mapping[str, Array]
    """Outputs whose values are in the JSON part of the binary reply."""


class Decoder:
    """Turns replies of one model into outputs. Any thread may call a decoder.

    Text becomes a `str`; bytes that are not valid UTF-8 become surrogate escapes, as in file names. BF16 becomes
    float32, which contains all BF16 values.
    """

    def __init__(self, model: str, outputs: Sequence[Tensor], size: int | None) -> None:
        """outputs: the outputs in the metadata. size: the model's fixed batch; None if any batch is accepted."""
        self._model = model
        self._told = {tensor.name: tensor for tensor in outputs}
        self._size = size
        self._names: tuple[str, ...] = ()
        self._version: str | None = None
        self._encoding = ""
        self._layouts: dict[bytes, _Layout] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The output names, in the order of the first reply."""
        return self._names

    @property
    def version(self) -> str | None:
        """The model's version in the first reply; None if the reply states none."""
        return self._version

    @property
    def encoding(self) -> str:
        """The encoding of the first reply: binary, json or typed."""
        return self._encoding

    def first(self, reply: Reply, samples: int) -> None:
        """Decodes the first reply; later replies must have the same outputs, types and model version."""
        outputs = self._named(reply, samples)
        self._names = tuple(outputs)
        self._encoding = self.form(reply)

    def form(self, reply: Reply) -> str:
        """Returns the encoding of a reply."""
        is_json = _json_bytes(reply.head, len(reply.body)) is None
        return "json" if is_json else "binary"

    def __call__(self, reply: Reply, samples: int) -> Outputs:
        """Returns a single output unchanged, and several outputs by name. Raises Refused if the server reports an
        error, and BadAnswer if the reply is invalid.
        """
        outputs = self._named(reply, samples)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def _named(self, reply: Reply, samples: int) -> Mapping[str, Array]:
        rows = self._size or samples
        outputs = self.read(reply, rows)
        if rows != samples:
            return {name: values[:samples] for name, values in outputs.items()}
        return outputs

    def read(self, reply: Reply, rows: int) -> Mapping[str, Array]:
        """Returns the outputs by name, each with `rows` rows."""
        if reply.status != _OK:
            raise refused(reply)
        body = reply.body
        start = _json_bytes(reply.head, len(body))
        if start is None:
            return self._in_json(bytes(body), rows)
        return self._behind_json(body, start, rows)

    def _behind_json(self, body: memoryview, start: int, rows: int) -> Mapping[str, Array]:
        text = bytes(body[:start])
        layout = self._layouts.get(text)
        if layout is None:
            layout = self._layout(text)
            if not layout.in_json:
                if len(self._layouts) >= MOST_LAYOUTS:
                    self._layouts.clear()
                self._layouts[text] = layout
        if layout.rows != rows:
            raise wrong_rows(layout.rows, rows)
        if layout.size != len(body) - start:
            raise BadAnswer(
                f"the reply has {len(body) - start} bytes after its JSON part, but its outputs "
                f"have {layout.size}"
            )
        if layout.plain is not None:
            return {
                name: np.ndarray(shape, dtype, body, start + offset).copy()
                for name, shape, dtype, offset in layout.plain
            }
        values = body[start:]
        binary = {
            p.output.name: from_bytes(p.output, p.shape, values[p.start : p.start + p.size])
            for p in layout.places
        }
        return {**binary, **layout.in_json}

    def _layout(self, text: bytes) -> _Layout:
        places: list[_Place] = []
        in_json: dict[str, Array] = {}
        end = 0
        shapes = []
        for output, shape, about in self._outputs(text):
            shapes.append(shape)
            size = _binary_bytes(about, output)
            if size is None:
                in_json[output.name] = from_list(output, shape, about.get("data"))
                continue
            dtype = ON_THE_WIRE.get(output.datatype)
            if dtype is not None and size != prod(shape) * dtype.itemsize:
                raise wrong_size(output, shape, size)
            places.append(_Place(output, shape, end, size))
            end += size
        as_they_lie = not in_json and all(
            p.output.datatype not in (TEXT, "BF16", "BOOL") for p in places
        )
        plain = [
            (p.output.name, p.shape, ON_THE_WIRE[p.output.datatype], p.start)
            for p in places
            if as_they_lie
        ]
        return _Layout(shapes[0][0], end, plain if as_they_lie else None, places, in_json)

    def _in_json(self, text: bytes, rows: int) -> Mapping[str, Array]:
        found = {}
        for output, shape, about in self._outputs(text):
            if shape[0] != rows:
                raise wrong_rows(shape[0], rows)
            if _binary_bytes(about, output) is not None:
                raise BadAnswer(
                    f"output {output.name!r} is declared as binary, but the reply has no header "
                    "Inference-Header-Content-Length"
                )
            found[output.name] = from_list(output, shape, about.get("data"))
        return found

    def _outputs(self, text: bytes) -> list[Output]:
        content = json_object(text)
        if content.get("error"):
            raise Refused(_OK, words(text))
        return self.outputs_of(content)

    def outputs_of(self, content: Mapping[str, Any]) -> list[Output]:
        """Returns the outputs of a reply; raises an error unless all outputs have the same number of rows. content: the
        reply as JSON.
        """
        self._check_model(content)
        abouts = content.get("outputs")
        if not isinstance(abouts, list) or not abouts:
            raise BadAnswer("the reply has no outputs")
        found = [self._output(about) for about in abouts]
        names = [output.name for output, _, _ in found]
        if len(set(names)) != len(names):
            raise BadAnswer(f"an output appears twice in the reply: {', '.join(names)}")
        if self._names and set(names) != set(self._names):
            raise BadAnswer(
                f"the reply has the outputs {', '.join(names)}, not {', '.join(self._names)}"
            )
        rows = {shape[0] for _, shape, _ in found}
        if len(rows) > 1:
            raise BadAnswer(f"the outputs have different first dimensions: {sorted(rows)}")
        if not self._names:  # the first reply sets the names
            self._told = {
                output.name: self._told.get(output.name, output) for output, _, _ in found
            }
        return found

    def _check_model(self, content: Mapping[str, Any]) -> None:
        if content.get("model_name") != self._model:
            raise BadAnswer(
                f"the reply is from model {shown(content.get('model_name'))}, not {self._model!r}"
            )
        told = content.get("model_version")
        version = str(told) if told else None
        if not self._names:
            self._version = version
        elif version != self._version:
            raise BadAnswer(
                f"the reply is from version {shown(version)} of the model, but the first one was from "
                f"{shown(self._version)}"
            )

    def _output(self, about: object) -> Output:
        if not isinstance(about, dict):
            raise BadAnswer(f"an output is {shown(about)}, not a JSON object")
        name, datatype, shape = (about.get(key) for key in ("name", "datatype", "shape"))
        if not isinstance(name, str) or not isinstance(datatype, str) or datatype not in NAMES:
            raise BadAnswer(f"output {shown(name)} has the datatype {shown(datatype)}")
        if not (isinstance(shape, list) and shape and all(_is_size(size) for size in shape)):
            raise BadAnswer(f"output {name!r} has the invalid shape {shown(shape)}")
        output = self._told.get(name) or Tensor(name, datatype, None)
        if datatype != output.datatype:
            raise BadAnswer(f"output {name!r} is {datatype}, not {output.datatype}")
        if not _agrees(shape, output.shape):
            raise BadAnswer(
                f"output {name!r} has the shape {shape}, not {show_shape(output.shape or ())}"
            )
        if len(shape) > _MOST_DIMENSIONS or prod(max(size, 1) for size in shape) > _MOST_VALUES:
            raise BadAnswer(f"output {name!r} has the invalid shape {shown(shape)}")
        return output, tuple(shape), about


_MOST_DIMENSIONS = 32
_MOST_VALUES = 2**59
"""An array may contain at most this many values, because NumPy cannot hold more of any type."""


def json_object(text: bytes) -> Mapping[str, Any]:
    """Parses a JSON object. Raises BadAnswer if the text is not a JSON object."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise BadAnswer(f"the reply is not valid JSON: {text[:60]!r}") from e
    if not isinstance(content, dict):
        raise BadAnswer(f"the reply is {shown(content)}, not a JSON object")
    return content


def _json_bytes(head: bytes, body: int) -> int | None:
    """Returns the length of a binary reply's JSON part; None if the whole body is JSON. body: the body's length."""
    lowered = head.lower()
    at = lowered.find(_LENGTH)
    if at < 0:
        return None
    value = lowered[at + len(_LENGTH) :].partition(b"\r\n")[0].strip()
    if not value.isdigit() or len(value) > len(str(body)) or int(value) > body:
        raise BadAnswer(
            f"Inference-Header-Content-Length is {shown(value.decode('latin-1'))} in a reply of "
            f"{body} bytes"
        )
    return int(value)


def _binary_bytes(about: Mapping[str, Any], output: Tensor) -> int | None:
    """Returns the size of an output's binary values; None if the values are in the JSON."""
    parameters = about.get("parameters")
    if not isinstance(parameters, dict) or "binary_data_size" not in parameters:
        return None
    size = parameters["binary_data_size"]
    if not _is_size(size) or "data" in about:
        raise BadAnswer(f"output {output.name!r} has the binary_data_size {shown(size)}")
    return int(size)


def _is_size(value: object) -> bool:
    return type(value) is int and value >= 0


def _agrees(shape: Sequence[int], told: Sequence[int | None] | None) -> bool:
    """Returns whether the shape equals the shape in the metadata, apart from the batch."""
    if told is None:
        return True
    pairs = list(zip(shape, told, strict=False))[1:]
    return len(shape) == len(told) and all(size in (None, is_) for is_, size in pairs)


def wrong_size(output: Tensor, shape: Sequence[int], size_bytes: int) -> BadAnswer:
    """Returns the error for an output whose binary values do not have the size that its shape requires."""
    expected = prod(shape) * ON_THE_WIRE[output.datatype].itemsize
    return BadAnswer(
        f"output {output.name!r} of shape {list(shape)} has {size_bytes} bytes, not {expected}"
    )


def wrong_rows(found: int, rows: int) -> BadAnswer:
    """Returns the error for a reply that does not have one row per sample."""
    return BadAnswer(f"the outputs have {found} rows for {rows} samples")
