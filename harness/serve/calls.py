"""Reads the JSON of an inference request, and checks it against the model's inputs."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple, NoReturn

import numpy as np

from harness.core.formats.kserve_tensors import DATATYPES, from_json, texts_from
from harness.serve.answers import Refusal
from harness.serve.served import ANY, Served, TensorInfo
from harness.types import Array

_UNSUPPORTED = ("classification", "shared_memory_region")
"""Parameters of unsupported extensions. The server refuses these parameters, because a reply that ignores them would be
wrong.
"""


class Template(NamedTuple):
    """A reply without its times and without its tensors' bytes."""

    key: Sequence[object]
    """Name, type and shape of each tensor."""
    head: bytes
    json: bytes


class _Raw(NamedTuple):
    """A tensor whose values follow the JSON as bytes."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def array(self, tensors: memoryview) -> Array:
        """Returns the values as a view of `tensors`, or as a copy if the bytes are not aligned for the number type."""
        raw, count = tensors[self.begin : self.end], prod(self.shape)
        if self.datatype == "BYTES":
            return texts_from(raw, count).reshape(self.shape)
        array = np.frombuffer(raw, DATATYPES[self.datatype]).reshape(self.shape)
        return array if array.flags.aligned else array.copy()


@dataclass(slots=True, kw_only=True)
class Call:
    """An inference request, without the bytes that follow its JSON."""

    samples: int
    raw: Sequence[_Raw]
    given: Mapping[str, Array]
    """The inputs whose values are in the JSON."""
    outputs: Mapping[str, bool] | None
    """Maps the name of each requested output to whether the client requests the output in binary form. None if the
    client requests all outputs; `all_binary` then applies to all outputs.
    """
    all_binary: bool
    request_id: str | None
    template: Template | None = None
    """Template of the last reply, or None if some tensors in the reply are not binary."""

    @property
    def raw_bytes(self) -> int:
        return self.raw[-1].end if self.raw else 0

    def inputs(self, tensors: memoryview) -> Mapping[str, Array]:
        """Returns all inputs by name. tensors: the bytes that follow the JSON. Raises Refusal if the bytes do not fit."""
        if len(tensors) != self.raw_bytes:
            raise Refusal(
                400,
                f"{len(tensors):,} bytes follow the JSON, but its tensors have {self.raw_bytes:,}: "
                "Inference-Header-Content-Length must be the length of the JSON",
            )
        try:
            arrays = {raw.name: raw.array(tensors) for raw in self.raw}
        except ValueError as e:
            raise Refusal(400, f"the tensors cannot be read: {e}") from None
        return {**self.given, **arrays} if self.given else arrays


def parsed(text: bytes) -> object:
    """Returns the content of a JSON text. Raises Refusal if the text is not valid JSON."""
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as e:
        raise Refusal(400, f"the request is not valid JSON: {e}") from None


def read_call(content: object, served: Served) -> Call:
    """Checks a request, and returns it as a Call. Raises Refusal with the faulty field. content: the parsed JSON."""
    request = _mapping(content, "the request")
    parameters = _parameters(request, "the request")
    request_id = request.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise Refusal(400, "id is not a string")
    inputs = list(_inputs(request, served))
    return Call(
        samples=_samples(inputs, served),
        raw=[value for _, _, value in inputs if isinstance(value, _Raw)],
        given={name: value for name, _, value in inputs if not isinstance(value, _Raw)},
        outputs=_outputs(request, parameters),
        all_binary=parameters.get("binary_data_output") is True,
        request_id=request_id,
    )


def _refuse_constant(text: str) -> NoReturn:
    raise ValueError(f"{text} is not a JSON number")


def _mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise Refusal(400, f"{what} is not a JSON object")
    return value


def _parameters(owner: Mapping[str, Any], what: str) -> Mapping[str, Any]:
    parameters = _mapping(owner.get("parameters", {}), f"parameters of {what}")
    for name in _UNSUPPORTED:
        if name in parameters:
            raise Refusal(400, f"{what}: this server does not have the extension {name}")
    return parameters


def _tensors(request: Mapping[str, Any], key: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yields the name and content of each tensor. Raises Refusal if a name occurs twice."""
    tensors = request[key]
    if not isinstance(tensors, list):
        raise Refusal(400, f"{key} is not a list")
    names = set()
    for each in tensors:
        tensor = _mapping(each, f"one of {key}")
        name = tensor.get("name")
        if not isinstance(name, str) or name in names:
            raise Refusal(
                400,
                f"{key}: each needs a unique name, but {name!r} is not a string or appears twice",
            )
        names.add(name)
        yield name, tensor


def _inputs(
    request: Mapping[str, Any], served: Served
) -> Iterator[tuple[str, tuple[int, ...], _Raw | Array]]:
    """Yields the name, shape and values of each input."""
    if not request.get("inputs"):
        raise Refusal(400, "the request has no inputs")
    specs = {spec.name: spec for spec in served.inputs}
    end = 0
    found = set()
    for name, tensor in _tensors(request, "inputs"):
        found.add(name)
        if specs and name not in specs:
            raise Refusal(400, f"the model has no input {name!r}, only {', '.join(specs)}")
        datatype, shape = tensor.get("datatype"), _shape(name, tensor)
        if datatype not in DATATYPES:
            raise Refusal(400, f"input {name!r}: {datatype!r} is not one of {', '.join(DATATYPES)}")
        if specs:
            _check(specs[name], datatype, shape)
        value = _value(name, datatype, shape, tensor, end)
        if isinstance(value, _Raw):
            end = value.end
        yield name, shape, value
    if missing := specs.keys() - found:
        raise Refusal(400, f"the input {min(missing)!r} is missing")


def _shape(name: str, tensor: Mapping[str, Any]) -> tuple[int, ...]:
    shape = tensor.get("shape")
    if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
        raise Refusal(400, f"input {name!r}: shape is not a list of sizes")
    if not shape:
        raise Refusal(400, f"input {name!r}: the shape is empty, so it has no batch")
    return tuple(shape)


def _check(spec: TensorInfo, datatype: str, shape: Sequence[int]) -> None:
    if datatype != spec.datatype:
        raise Refusal(
            400, f"input {spec.name!r} is {spec.datatype}, but the request has {datatype}"
        )
    pairs = zip(spec.shape[1:], shape[1:], strict=False)
    if len(shape) != len(spec.shape) or any(want not in (ANY, have) for want, have in pairs):
        raise Refusal(
            400,
            f"input {spec.name!r} has the shape {[*spec.shape]}, but the request has {[*shape]}",
        )


def _value(
    name: str, datatype: str, shape: tuple[int, ...], tensor: Mapping[str, Any], begin: int
) -> _Raw | Array:
    """Returns the values of a tensor. begin: position of the tensor's first byte, if the tensor is binary."""
    size = _parameters(tensor, f"input {name!r}").get("binary_data_size")
    if size is None:
        try:
            return from_json(tensor.get("data"), datatype, shape)
        except ValueError as e:
            raise Refusal(400, f"input {name!r}: {e}") from None
    if type(size) is not int or size < 0 or "data" in tensor:
        raise Refusal(
            400, f"input {name!r}: binary_data_size is not a size, or `data` is also present"
        )
    if datatype != "BYTES" and size != prod(shape) * np.dtype(DATATYPES[datatype]).itemsize:
        raise Refusal(
            400, f"input {name!r}: {datatype} of the shape {[*shape]} does not have {size:,} bytes"
        )
    return _Raw(name, datatype, shape, begin, begin + size)


def _samples(inputs: Sequence[tuple[str, tuple[int, ...], _Raw | Array]], served: Served) -> int:
    sizes = {shape[0] for _, shape, _ in inputs}
    if len(sizes) > 1:
        raise Refusal(400, f"the inputs have batches of different sizes: {sorted(sizes)}")
    (samples,) = sizes
    if not 1 <= samples <= served.max_batch:
        raise Refusal(400, f"a batch of {samples}: the server accepts 1 to {served.max_batch}")
    return samples


def _outputs(
    request: Mapping[str, Any], parameters: Mapping[str, Any]
) -> Mapping[str, bool] | None:
    if not request.get("outputs"):
        return None
    all_binary = parameters.get("binary_data_output") is True
    return {
        name: _parameters(tensor, f"output {name!r}").get("binary_data", all_binary) is True
        for name, tensor in _tensors(request, "outputs")
    }
