"""Formats the request fields of a single prompt, which a dataset writes and a client of language models reads.

A prompt is a JSON object. Without further fields it has `max_tokens`, if it is bounded, then `prompt` or `messages`.
With further fields it begins with `fields`, the list of the names that follow: `model` is the first if it is there,
the prompt is the last. So a client needs no parser in the run. Pure.
"""

from collections.abc import Mapping
from typing import Any

_BEGIN = b'{"fields":['
_MODEL = b'"model":"'


def framed(further: Mapping[str, Any], prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the JSON object of a prompt. further: fields without the prompt and its bound. prompt: these two."""
    if not further:
        return {**prompt}
    names = sorted(further, key=lambda name: (name != "model", name))
    return {"fields": [*names, *prompt], **{name: further[name] for name in names}, **prompt}


def split(sample: bytes) -> tuple[bytes, bytes]:
    """Returns the names of a prompt's fields, as a JSON list without its brackets, and the fields without `{`.

    The names are empty for a prompt without further fields.
    """
    if not sample.startswith(_BEGIN):
        return b"", sample[1:]
    end = sample.index(b"],", len(_BEGIN))
    return sample[len(_BEGIN) : end], sample[end + 2 :]


def model_in(fields: bytes) -> str:
    """Returns the model in the fields of `split`; '' without one. Its name has no quote and no backslash."""
    if not fields.startswith(_MODEL):
        return ""
    return fields[len(_MODEL) : fields.index(b'"', len(_MODEL))].decode()


def draws_tokens(fields: Mapping[str, Any]) -> bool:
    """Returns whether a server draws tokens at random, so that a repeated prompt gets a different answer."""
    temperature = fields.get("temperature", 0)
    return "seed" not in fields and isinstance(temperature, int | float) and temperature > 0
