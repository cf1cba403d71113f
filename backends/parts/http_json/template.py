"""Converts the template of a request's body into bytes with gaps, which the fields of samples fill.

Placeholders are strings in the parsed JSON, so a sample can never change the structure of a body:

{{NAME}}         an input of the request's only sample
{{NAME|FORM}}    the input in a different form: flat, shape, base64, png, npy, json
{{NAME[]}}       a list with the input of each sample
{{samples}}      a list with each sample, in the form of the sample's template
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from harness.backends.parts.http_json.fields import Field, check_form, dumps
from harness.core.formats.json_trees import parse_tree
from harness.types import Array, TensorSpec

SAMPLES = "samples"

_PLACEHOLDER = re.compile(
    r"\{\{\s*(?P<name>[^{}|\[\]]+?)\s*(?P<each>\[\])?\s*(?:\|\s*(?P<form>[^{}|]+?)\s*)?\}\}"
)
_UNQUOTED = re.compile(r"[:,\[]\s*(\{\{[^{}]*\}\})")
_BRACES = "{{"

_SHORT_BYTES = 65_536
"""Maximum length of a body that is sent as one part. Copying a short body takes less time than sending it in parts."""

Rows = Mapping[str, Array]
"""The inputs of one sample by name, without the batch dimension."""


class Gap(NamedTuple):
    """A place in the body that the samples of a request fill."""

    parts: tuple["bytes | Field", ...]
    """Parts whose joined bytes are the piece for one sample."""
    is_list: bool = False
    """True if the gap contains one piece per sample, separated by commas."""

    def encode(self, rows: Rows) -> bytes:
        """Returns the piece of one sample. Raises a ValueError if JSON cannot represent a value."""
        parts = [p if isinstance(p, bytes) else p.encode(rows) for p in self.parts]
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Template:
    """A request body with gaps. Any thread may call a template."""

    def __init__(self, body: object, sample: object | None, inputs: Sequence[TensorSpec]) -> None:
        """sample: the template of one sample in `{{samples}}`; None stands for the model's only input, or for an object
        of all inputs.

        Raises a ValueError with a one-line message if a placeholder cannot be filled.
        """
        self._dtypes = {spec.name: spec.dtype for spec in inputs}
        self._sample = self._default_sample() if sample is None else sample
        self._uses_samples = False
        parts = _merged(self._parts(body))
        if sample is not None and not self._uses_samples:
            raise ValueError("body has no {{samples}}, where the template of one sample would go")
        self.gaps = tuple(part for part in parts if isinstance(part, Gap))
        if not self.gaps:
            raise ValueError(
                'body has no placeholder, so all requests would be identical: write e.g. {"instances": "{{samples}}"}'
            )
        self._between = _between(parts)
        self.takes_lists = all(gap.is_list for gap in self.gaps)
        """True if a request may contain several samples."""

    def pieces(self, rows: Rows) -> tuple[bytes, ...]:
        """Returns the bytes of one sample for each gap. Raises a ValueError if JSON cannot represent a value."""
        return tuple(gap.encode(rows) for gap in self.gaps)

    def joined(self, samples: Sequence[Sequence[bytes]]) -> tuple[bytes, ...]:
        """Returns the parts of the body for samples with these pieces. Joins the parts of a short body; does not copy
        the parts of a long body.
        """
        body = [self._between[0]]
        for gap, after in enumerate(self._between[1:]):
            for pieces in samples:
                body += [pieces[gap], b","]
            body[-1] = after
        return (b"".join(body),) if sum(map(len, body)) <= _SHORT_BYTES else tuple(body)

    def _default_sample(self) -> object:
        if len(self._dtypes) == 1:
            return f"{{{{{next(iter(self._dtypes))}}}}}"
        return {name: f"{{{{{name}}}}}" for name in self._dtypes}

    def _parts(self, node: object, *, of_sample: bool = False) -> Iterator["bytes | Field | Gap"]:
        """Yields the parts of a JSON value in order. of_sample: whether the value belongs to the template of one
        sample.
        """
        if isinstance(node, dict):
            yield b"{"
            for at, (key, value) in enumerate(node.items()):
                yield (b"," if at else b"") + _key(key) + b":"
                yield from self._parts(value, of_sample=of_sample)
            yield b"}"
        elif isinstance(node, list | tuple):
            yield b"["
            for at, value in enumerate(node):
                yield b"," if at else b""
                yield from self._parts(value, of_sample=of_sample)
            yield b"]"
        elif isinstance(node, str) and _BRACES in node:
            yield from self._of_text(node, of_sample)
        else:
            yield dumps(node)

    def _of_text(self, text: str, of_sample: bool) -> Iterator["bytes | Field | Gap"]:
        whole = _PLACEHOLDER.fullmatch(text)
        if whole is not None:
            yield from self._placeholder(whole, of_sample)
            return
        yield b'"'
        end = 0
        for found in _PLACEHOLDER.finditer(text):
            yield _inner(text[end : found.start()])
            if found["each"] or found["name"] == SAMPLES:
                raise ValueError(
                    f"{found[0]} is a list, which cannot be part of the string {text!r}"
                )
            field = self._field(found, within_text=True)
            yield field if of_sample else Gap((field,))
            end = found.end()
        yield _inner(text[end:])
        yield b'"'

    def _placeholder(
        self, found: re.Match[str], of_sample: bool
    ) -> Iterator["bytes | Field | Gap"]:
        """Yields the parts for a string that consists of one placeholder."""
        is_list = found["each"] is not None or found["name"] == SAMPLES
        if not is_list:
            field = self._field(found)
            yield field if of_sample else Gap((field,))
            return
        if of_sample:
            raise ValueError(
                f"{found[0]} is a list of samples, but this is the template of one sample"
            )
        yield b"["
        yield Gap(self._of_sample(found), is_list=True)
        yield b"]"

    def _of_sample(self, found: re.Match[str]) -> tuple["bytes | Field", ...]:
        """Returns the parts of one sample in a list of samples."""
        if found["name"] != SAMPLES:
            return (self._field(found),)
        if found["form"] or found["each"]:
            raise ValueError(f"{found[0]} has a form: put the form in the template of one sample")
        if not self._dtypes and self._sample == {}:
            raise ValueError("{{samples}} needs a manifest, which lists the model's inputs")
        self._uses_samples = True
        merged = _merged(self._parts(self._sample, of_sample=True))
        parts = tuple(part for part in merged if not isinstance(part, Gap))
        if not any(isinstance(part, Field) for part in parts):
            raise ValueError(
                "the template of one sample has no placeholder, so all samples would be identical"
            )
        return parts

    def _field(self, found: re.Match[str], *, within_text: bool = False) -> Field:
        name, form = found["name"], found["form"] or "list"
        if self._dtypes and name not in self._dtypes:
            have = ", ".join((*self._dtypes, SAMPLES))
            raise ValueError(f"{found[0]} is not an input of the model: it has {have}")
        check_form(form, self._dtypes.get(name))
        return Field(name, form, within_text)


def tree_of(text: str) -> object:
    """Returns the template in an option: JSON, YAML or one bare placeholder. Raises a ValueError with a one-line
    message.
    """
    if _PLACEHOLDER.fullmatch(text.strip()):
        return text.strip()
    try:
        return parse_tree(text)
    except ValueError:
        bare = _UNQUOTED.search(text)
        if bare is None:
            raise
        raise ValueError(f"{bare[1]} is a string: put it in quotes") from None


def bare_field(body: object, inputs: Sequence[TensorSpec]) -> Field:
    """Returns the field that is the whole body if the body is not JSON. Raises a ValueError with a one-line message."""
    found = _PLACEHOLDER.fullmatch(body) if isinstance(body, str) else None
    if found is None or found["each"] or found["name"] == SAMPLES:
        raise ValueError("a body that is not JSON must be one placeholder, e.g. {{image|png}}")
    (gap,) = Template(body, None, inputs).gaps
    (field,) = gap.parts
    assert isinstance(field, Field)
    return field


def _key(key: Any) -> bytes:
    if not isinstance(key, str):
        raise ValueError(f"the key {key!r} is not a string: put it in quotes")
    if _BRACES in key:
        raise ValueError(f"the key {key!r} has a placeholder, but only values can be placeholders")
    return dumps(key)


def _inner(text: str) -> bytes:
    """Returns the characters of a JSON string without the quotes."""
    if _BRACES in text:
        raise ValueError(
            f"{text[text.index(_BRACES) :][:40]!r} is not a placeholder such as {{{{image}}}}"
        )
    return dumps(text)[1:-1]


def _merged(parts: Iterator["bytes | Field | Gap"]) -> list["bytes | Field | Gap"]:
    """Joins adjacent bytes."""
    merged: list[bytes | Field | Gap] = []
    for part in parts:
        if isinstance(part, bytes) and merged and isinstance(merged[-1], bytes):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _between(parts: Sequence["bytes | Field | Gap"]) -> list[bytes]:
    """Returns the bytes before, between and after the gaps: one more piece than gaps."""
    between = [b""]
    for part in parts:
        if isinstance(part, bytes):
            between[-1] += part
        else:
            between.append(b"")
    return between
