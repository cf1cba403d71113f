"""Reads answers from JSON replies. Every fault in a server's reply raises BadAnswer or Refused."""

import json
from collections.abc import Sequence
from itertools import chain
from math import inf
from typing import Any, NamedTuple

import numpy as np

from harness.backends.parts.http_json.pointer import Pointer
from harness.backends.parts.refusals import refused, words
from harness.core.formats.kserve_tensors import datatype_of, from_json
from harness.errors import one_line
from harness.remote import BadAnswer, Refused, Reply, Usage
from harness.types import Array, Outputs, show_shape

TEXT = "text"
"""The type for answers that consist of one string. Answers of this type are stored as UTF-8."""

_OK = 200
_SHOWN_BYTES = 60
_ERRORS = ("error", "errors", "detail")
"""Keys under which servers report an error, even in a reply with status 200."""

_MOST_DEPTH = 32
"""The maximum number of dimensions of a NumPy array."""


class _Constant(float):
    """NaN or infinity in a reply. JSON forbids both, but Python's encoder writes them. This type is not a number type of
    an answer, so that an answer with such a value is refused; the rest of a reply may contain them.
    """


def _constant(text: str) -> float:
    # -Infinity is accepted, because models mask scores with it.
    return -inf if text == "-Infinity" else _Constant(text)


_DECODER = json.JSONDecoder(parse_constant=_constant)
"""Made once, because json.loads would make a decoder for each reply."""


def _parsed(body: bytes) -> Any:
    return _DECODER.decode(body.decode(json.detect_encoding(body), "surrogatepass"))


class Counted:
    """Reads one reply from a server that also counts the tokens of the answer."""

    def __init__(self, form: "Form", tokens: Pointer) -> None:
        self._form, self._tokens = form, tokens
        self.usage = Usage()
        self.first_token: int | None = None

    def answer(self, reply: Reply) -> Outputs:
        if reply.status != _OK:
            raise refused(reply)
        body = bytes(reply.body)
        outputs = read(self._form, body, 1)
        place = repr(self._tokens.text)
        try:
            found = self._tokens.find(json.loads(body))
        except LookupError:
            raise BadAnswer(f"the reply has no tokens at {place}{_shown(body)}") from None
        count = len(found) if isinstance(found, list) else found
        if type(count) is not int or count < 0:
            raise BadAnswer(f"the reply has {_kind(found)} at {place}, not a count{_shown(body)}")
        self.usage = Usage(output=count, source="usage")
        return outputs


class Form(NamedTuple):
    """Position, type and shape of the answers in a reply."""

    answers: Pointer | None
    """Pointer to the list with one item per sample; None if a reply contains only one answer."""
    answer: Pointer
    """Pointer to the answer, within an item of that list or within the reply."""
    dtype: str
    shape: tuple[int | None, ...]
    """The shape of one answer; None stands for a size that varies."""

    def __str__(self) -> str:
        place = self.answer.text
        if self.answers is not None:
            place = f"{place} of each item of {self.answers.text}"
        kind = TEXT if self.dtype == TEXT else f"{self.dtype} of shape {show_shape(self.shape)}"
        return f"{place}, {kind}"


def read(form: Form, body: bytes, samples: int) -> Outputs:
    """Returns the answers of a reply. Raises BadAnswer or Refused, with the first bytes of the reply."""
    try:
        content = _parsed(body)
    except (ValueError, RecursionError) as e:
        raise BadAnswer(f"the reply is not valid JSON{_shown(body)}") from e
    try:
        found = _found(form, content, samples)
        if form.dtype == TEXT:
            return [_utf_8(text) for text in found]
        return _arrays(form, found)
    except LookupError as e:
        if isinstance(content, dict) and any(content.get(key) for key in _ERRORS):
            raise Refused(_OK, words(body)) from e
        raise BadAnswer(f"the reply has nothing at {_place(form)}{_shown(body)}") from e
    except ValueError as e:
        raise BadAnswer(f"{one_line(e)}{_shown(body)}") from e


def _shown(body: bytes) -> str:
    return f" (it begins with {body[:_SHOWN_BYTES]!r})" if body else " (it is empty)"


def _place(form: Form) -> str:
    if form.answers is None:
        return repr(form.answer.text)
    of_item = f", or an item of that list has nothing at {form.answer.text!r}"
    return f"{form.answers.text!r}{of_item if form.answer else ''}"


def _found(form: Form, content: Any, samples: int) -> list[Any]:
    """Returns the value of each sample's answer."""
    if form.answers is None:
        return [form.answer.find(content)]
    items = form.answers.find(content)
    if not isinstance(items, list):
        raise ValueError(
            f"the reply has {_kind(items)} at {form.answers.text!r}, not a list of answers"
        )
    if len(items) != samples:
        raise ValueError(
            f"the reply has {len(items)} answers at {form.answers.text!r} for {samples} samples"
        )
    return [form.answer.find(item) for item in items] if form.answer else items


def _utf_8(text: Any) -> Array:
    if not isinstance(text, str):
        raise ValueError(
            f"an answer in the reply is {_kind(text)}, not a string: see --backend-option dtype"
        )
    return np.frombuffer(text.encode("utf-8", "replace"), np.uint8)


def _arrays(form: Form, found: list[Any]) -> Array | list[Array]:
    """Returns one array if all answers have the same shape, otherwise one array per answer."""
    shape = _shape(found[0]) if found else ()
    flat = _flat(found, (len(found), *shape)) if _fits(shape, form.shape) else None
    if flat is not None:
        return _array(form, flat, (len(found), *_whole(shape, form.shape)))
    return [_alone(form, value) for value in found]


def _alone(form: Form, value: Any) -> Array:
    """Returns one answer. Raises a ValueError if the shape of the answer does not fit."""
    shape = _shape(value)
    flat = _flat([value], (1, *shape))
    if flat is None:
        raise ValueError("an answer in the reply has lists of different lengths")
    if not _fits(shape, form.shape):
        wanted = show_shape(form.shape) if form.shape else "one number"
        raise ValueError(
            f"an answer in the reply has the shape {show_shape(shape)}, not {wanted}: see --backend-option shape"
        )
    return _array(form, flat, _whole(shape, form.shape))


def _array(form: Form, flat: list[Any], shape: tuple[int, ...]) -> Array:
    datatype = datatype_of(form.dtype)
    assert datatype is not None  # not None, because the backend has checked the option
    try:
        return from_json(flat, datatype, shape, null_is_nan=False)
    except ValueError:
        wrong = next((value for value in flat if type(value) not in (int, float)), flat[0])
        if wrong is None or isinstance(wrong, _Constant):
            raise ValueError(
                f"an answer in the reply has {_kind(wrong)} instead of a number"
            ) from None
        raise ValueError(
            f"an answer in the reply has {_kind(wrong)} that is not {form.dtype}: see --backend-option dtype"
        ) from None


def _shape(value: Any) -> tuple[int, ...]:
    """Returns the shape of nested lists, judged by the first item of each list."""
    sizes: list[int] = []
    while isinstance(value, list) and len(sizes) < _MOST_DEPTH:
        sizes.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(sizes)


def _fits(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> bool:
    """Returns whether the shape matches the expected shape. An empty list does not show the sizes of the dimensions
    inside it.
    """
    if shape == wanted:
        return True
    is_whole = len(shape) == len(wanted) or (0 in shape and len(shape) < len(wanted))
    return is_whole and all(size in (None, is_) for size, is_ in zip(wanted, shape, strict=False))


def _whole(shape: tuple[int, ...], wanted: tuple[int | None, ...]) -> tuple[int, ...]:
    """Returns the shape; sizes that an empty list hides come from the wanted shape."""
    return (*shape, *[size or 0 for size in wanted[len(shape) :]])


def _flat(nested: list[Any], shape: Sequence[int]) -> list[Any] | None:
    """Returns the values of lists whose nesting matches the shape; None for any other nesting."""
    level = nested
    for size in shape[1:]:
        if level and (set(map(type, level)) != {list} or set(map(len, level)) != {size}):
            return None
        level = list(chain.from_iterable(level))
    return None if list in set(map(type, level)) else level


def _kind(value: Any) -> str:
    """Returns a noun for the kind of a JSON value."""
    nouns = {
        dict: "an object",
        list: "a list",
        str: "a string",
        type(None): "null",
        bool: "a bool",
        _Constant: "NaN or infinity",
    }
    return nouns.get(type(value), "a number")
