"""Derives three things from the JSON Schemas on a service's page: the template for requests, the model's inputs, and
the position of the answer in a reply.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

_DTYPES = {"number": "float32", "integer": "int64", "boolean": "bool", "string": "string"}
_TENSOR_DTYPES = (
    *("float16", "float32", "float64", "bool"),
    *("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"),
)
_BYTES = ("binary", "byte", "base64")
"""Values of `format` that mean encoded bytes in a string."""

_SAMPLES = ("instances",)
"""Names of lists with one item per sample, in TensorFlow Serving's protocol and similar protocols."""

_ANSWERS = (
    *("predictions", "prediction", "outputs", "output", "scores", "probabilities"),
    *("logits", "embedding", "embeddings", "result", "results", "answer", "label"),
)
"""Usual names of answers, most likely first."""

_MOST_DEPTH = 16
"""Maximum nesting depth; deeper schemas, including schemas that contain themselves, are not described.
"""


class Undescribed(ValueError):
    """Raised if the page does not describe the JSON of a request or reply."""


class Values(NamedTuple):
    """A string, or numbers of one type."""

    dtype: str
    shape: tuple[int | None, ...]
    form: str = ""
    """Form of the placeholder in the template, or '' for the default form."""


class Body(NamedTuple):
    """The template for a request."""

    body: Any
    sample: Any
    """The template for one sample, or None if the body contains no list of samples or the default template fits."""
    inputs: Mapping[str, Values]

    @property
    def takes_lists(self) -> bool:
        return "{{samples}}" in _texts(self.body)


class Answer(NamedTuple):
    """The position of the answer in a reply."""

    answers: str
    """JSON pointer to the list with one item per sample, or '' if a reply contains only one answer."""
    answer: str
    values: Values


class Page:
    """The schemas on one page."""

    def __init__(self, content: Mapping[str, Any]) -> None:
        self._content = content

    def body(self, schema: Any) -> Body:
        """Returns the template for requests that follow this schema. Raises Undescribed if the schema does not contain
        enough information.
        """
        inputs: dict[str, Values] = {}
        samples: list[Any] = []
        body = self._template(schema, "", inputs, samples)
        if not inputs:
            raise Undescribed("its body")
        sample = samples[0] if samples else None
        default = next(iter(inputs)) if len(inputs) == 1 else None
        if sample in (f"{{{{{default}}}}}", {name: f"{{{{{name}}}}}" for name in inputs}):
            sample = None
        return Body(body, sample, inputs)

    def _template(
        self, schema: Any, name: str, inputs: dict[str, Values], samples: list[Any], depth: int = 0
    ) -> Any:
        """Returns the template for a value. Adds the value's inputs to `inputs`, and the template for one sample to
        `samples`.
        """
        plain = self.plain(schema, depth)
        values = self._values(plain, depth)
        is_list = plain.get("type") == "array" and not samples
        if is_list and (values is None or name.rpartition("_")[2] in _SAMPLES):
            one = self._template(plain.get("items"), name, inputs, [None], depth + 1)
            samples.append(one)
            return "{{samples}}"
        if values is not None:
            own = _free(re.sub(r"[{}|\[\]\s]+", "_", name) or "input", inputs)
            inputs[own] = values
            return f"{{{{{own}{values.form and '|'}{values.form}}}}}"
        return {
            key: self._template(part, f"{name}_{key}".lstrip("_"), inputs, samples, depth + 1)
            for key, part in self._properties(plain).items()
        }

    def answer(self, schema: Any, takes_lists: bool) -> Answer:
        """Returns the position of the answer in replies that follow this schema. Raises Undescribed if the schema does
        not contain enough information.
        """
        for pointer, plain in self._leaves(schema):
            values = self._values(plain, 0)
            if not takes_lists and values is not None:
                return Answer("", pointer, values)
            if takes_lists and plain.get("type") == "array":
                for within, item in self._leaves(plain.get("items")):
                    found = self._values(item, 0)
                    if found is not None:
                        return Answer(pointer, within, found)
        raise Undescribed("its reply")

    def _leaves(self, schema: Any, at: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
        """Yields a pointer to each value that is not an object, and the value's schema; the most likely answer comes
        first.
        """
        plain = self.plain(schema, depth)
        properties = plain.get("properties")
        if not isinstance(properties, dict):
            yield at, plain
            return
        known = [name for name in _ANSWERS if name in properties]
        others = [name for name in properties if name not in known]
        for name in (*known, *others):
            token = str(name).replace("~", "~0").replace("/", "~1")
            try:
                yield from self._leaves(properties[name], f"{at}/{token}", depth + 1)
            except Undescribed:
                continue

    def plain(self, schema: Any, depth: int) -> Mapping[str, Any]:
        """Resolves references in the schema, and selects the first alternative that is not null. Raises Undescribed if
        the schema does not contain enough information.
        """
        for _ in range(_MOST_DEPTH):
            if not isinstance(schema, dict) or depth > _MOST_DEPTH:
                break
            if "$ref" in schema:
                schema = self._referred(schema["$ref"])
                continue
            choices = next((schema[k] for k in ("anyOf", "oneOf", "allOf") if schema.get(k)), None)
            if not isinstance(choices, list):
                return schema
            some = [c for c in choices if not (isinstance(c, dict) and c.get("type") == "null")]
            schema = some[0] if some else None
        raise Undescribed("a part of its JSON")

    def _referred(self, reference: Any) -> Any:
        found: Any = self._content
        for token in str(reference).removeprefix("#/").split("/"):
            key = token.replace("~1", "/").replace("~0", "~")
            found = found.get(key) if isinstance(found, dict) else None
        return found

    def _properties(self, plain: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the required properties, or all properties if no property is required."""
        properties = plain.get("properties")
        if not isinstance(properties, dict) or not properties:
            raise Undescribed("a part of its JSON")
        required = plain.get("required")
        needed = required if isinstance(required, list) and required else list(properties)
        return {str(key): properties[key] for key in needed if key in properties}

    def _values(self, plain: Mapping[str, Any], depth: int) -> Values | None:
        """Returns the type and shape if the value is a string or consists of numbers, or None for objects and lists of
        objects.
        """
        kind = plain.get("type")
        if kind == "tensor":  # BentoML uses this name for an array of numbers
            return _tensor(plain)
        if kind == "array":
            items = plain.get("items")
            inner = self._items(items, depth) if items else Values("float32", ())
            if inner is None or inner.form:
                return None
            return inner._replace(shape=(_length(plain), *inner.shape))
        if kind == "string" and (plain.get("format") in _BYTES or plain.get("contentEncoding")):
            return Values("uint8", (None,), "base64")
        dtype = _DTYPES.get(str(kind))
        return Values(dtype, ()) if dtype is not None else None

    def _items(self, items: Any, depth: int) -> Values | None:
        return self._values(self.plain(items, depth + 1), depth + 1)


def _tensor(plain: Mapping[str, Any]) -> Values:
    dtype, shape = plain.get("dtype"), plain.get("shape")
    sizes = shape if isinstance(shape, list) else [None]
    return Values(
        str(dtype) if dtype in _TENSOR_DTYPES else "float32",
        tuple(size if isinstance(size, int) and size > 0 else None for size in sizes),
    )


def _length(plain: Mapping[str, Any]) -> int | None:
    """Returns the length of a list if the length is fixed, otherwise None."""
    least, most = plain.get("minItems"), plain.get("maxItems")
    return most if isinstance(most, int) and least == most and most > 0 else None


def _free(name: str, taken: Mapping[str, Any]) -> str:
    number = 2
    free = name
    while free in taken or free == "samples":
        free, number = f"{name}_{number}", number + 1
    return free


def _texts(tree: Any) -> Sequence[str]:
    """Returns all strings in a template."""
    if isinstance(tree, dict):
        return [text for value in tree.values() for text in _texts(value)]
    return [tree] if isinstance(tree, str) else []
