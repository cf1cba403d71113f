"""Encodes one input of one sample as a piece of JSON, in the form that a placeholder requests."""

import io
import json
from base64 import b64encode
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from harness.backends.parts.http_json.png import check_png, png_of
from harness.backends.parts.http_json.pointer import Pointer
from harness.backends.parts.http_json.sound import RATE_HZ, wav_of
from harness.core.files import parse_json
from harness.errors import one_line
from harness.types import Array

_JSON = "json"
"""A form that may be followed by a pointer into the sample's JSON, as in `json/prompt`."""

_WAV = "wav"
"""A form that may be followed by the sampling rate, as in `wav/22050`."""

_MOST_HZ = 1_000_000


class Field(NamedTuple):
    """One placeholder: an input and its form."""

    input: str
    form: str = "list"
    within_text: bool = False
    """True if the placeholder is inside a longer string. The value is then inserted as characters."""

    def encode(self, rows: Mapping[str, Array]) -> bytes:
        """Returns the piece of JSON. rows: one sample by input name. Raises a ValueError if JSON cannot represent the
        value.
        """
        try:
            value = _value(self.form, rows[self.input])
            if not self.within_text:
                return dumps(value)
            return dumps(_text(value))[1:-1]
        except ValueError as e:
            raise ValueError(f"input {self.input!r}: {one_line(e)}") from None

    def bare(self, rows: Mapping[str, Array]) -> bytes:
        """Returns the bytes of a body that is not JSON: the bytes of a file, a string or an array."""
        row = rows[self.input]
        maker = _file_maker(self.form)
        if maker is not None:
            return maker(row)
        return _text(_value(self.form, row)).encode()


def dumps(value: object) -> bytes:
    """Returns compact JSON in ASCII. Raises a ValueError for NaN and infinity, which JSON lacks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def check_form(form: str, dtype: str | None) -> None:
    """Raises a ValueError if the form is unknown, or does not suit the input's type. dtype: None if the type is
    unknown.
    """
    name, slash, rest = form.partition("/")
    if name == _JSON:
        Pointer(slash + rest)
        if dtype not in (None, "string"):
            raise ValueError(f"the form json is for strings, but the input is {dtype}")
        return
    if form not in _VALUES and _file_maker(form) is None:
        raise ValueError(
            f"unknown form {form!r}: use {', '.join((*_VALUES, *_FILES, _WAV, _JSON))}"
        )
    if dtype == "string" and form not in ("list", "base64"):
        raise ValueError(f"the form {form} is not for strings: use list, base64 or json")
    if form == "png" and dtype is not None:
        check_png(dtype)
    if name == _WAV and dtype not in (None, "float32", "float16", "float64"):
        raise ValueError(f"audio consists of floats, but the input is {dtype}")


def _value(form: str, row: Array) -> Any:
    if maker := _file_maker(form):
        return b64encode(maker(row)).decode()
    name, slash, rest = form.partition("/")
    if name == _JSON:
        return _part(_list(row), Pointer(slash + rest))
    return _VALUES[form](row)


def _list(row: Array) -> Any:
    """Returns nested lists, or one value if the row has no dimensions."""
    values = row.tolist()
    return _decoded(values) if row.dtype.kind in "OSU" else values


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    try:
        text = value.decode() if isinstance(value, bytes) else str(value)
        text.encode()
    except UnicodeError:
        raise ValueError("its bytes are not UTF-8: use base64") from None
    return text


def _part(text: object, pointer: Pointer) -> object:
    """Returns a part of a sample that contains JSON."""
    try:
        content = parse_json(str(text))
    except (ValueError, RecursionError):
        raise ValueError(f"the sample is not valid JSON: {one_line(str(text)[:60])!r}") from None
    try:
        return pointer.find(content)
    except LookupError:
        raise ValueError(f"the sample has nothing at {pointer.text!r}") from None


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list | dict):
        raise ValueError("only a string or a single number can be part of a string")
    return json.dumps(value, allow_nan=False)


def _bytes(row: Array) -> bytes:
    if row.dtype.kind not in "OSU":
        return np.ascontiguousarray(row, row.dtype.newbyteorder("<")).tobytes()
    if row.size != 1:
        raise ValueError(f"base64 encodes one string, but the input has {row.size}: use list")
    value = row.reshape(-1).tolist()[0]
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


def _npy(row: Array) -> bytes:
    file = io.BytesIO()
    np.save(file, row, allow_pickle=False)
    return file.getvalue()


def _file_maker(form: str) -> Callable[[Array], bytes] | None:
    """Returns the function that turns an input into a file; None if the form is not a file format."""
    name, slash, rate = form.partition("/")
    if name != _WAV:
        return _FILES.get(form)
    if not slash:
        return wav_of
    if not (rate.isascii() and rate.isdigit() and 0 < int(rate) <= _MOST_HZ):
        raise ValueError(
            f"the sampling rate {rate!r} is not a number of Hz: write {_WAV}/{RATE_HZ}"
        )
    return partial(wav_of, rate_hz=int(rate))


_VALUES: Mapping[str, Callable[[Array], Any]] = {
    "list": _list,
    "flat": lambda row: _list(row.reshape(-1)),
    "shape": lambda row: [*row.shape],
}
_FILES: Mapping[str, Callable[[Array], bytes]] = {
    "base64": _bytes,
    "png": png_of,
    "npy": _npy,
}
