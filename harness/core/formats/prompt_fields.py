"""Formats the fields of a request that contains a single prompt. A dataset writes these fields, and a language-model
client reads them.

A prompt is a JSON object. Without additional fields, it contains `max_tokens` (if limited) and then `prompt` or
`messages`. With additional fields, it begins with `fields`, a list of the field names. If the prompt sets `model`,
`model` is the first field. The prompt itself is always the last field. Because of this order, a client does not need a
JSON parser during the run.
"""

from collections.abc import Mapping
from typing import Any

_BEGIN = b'{"fields":['
_MODEL = b'"model":"'


def framed(further: Mapping[str, Any], prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a prompt's JSON object. prompt: the prompt and its token limit. further: all other fields."""
    if not further:
        return {**prompt}
    names = sorted(further, key=lambda name: (name != "model", name))
    return {"fields": [*names, *prompt], **{name: further[name] for name in names}, **prompt}


def split(sample: bytes) -> tuple[bytes, bytes]:
    """Returns the names of a prompt's fields, as a JSON list without its brackets, and the fields without the opening
    `{`.

    If the prompt has no additional fields, the names are empty.
    """
    if not sample.startswith(_BEGIN):
        return b"", sample[1:]
    end = sample.index(b"],", len(_BEGIN))
    return sample[len(_BEGIN) : end], sample[end + 2 :]


def model_in(fields: bytes) -> str:
    """Returns the model that the fields from `split` set, or '' if the fields do not set a model. The model's name
    contains no quotes or backslashes.
    """
    if not fields.startswith(_MODEL):
        return ""
    return fields[len(_MODEL) : fields.index(b'"', len(_MODEL))].decode()


def draws_tokens(fields: Mapping[str, Any]) -> bool:
    """Returns whether the server samples tokens at random. A repeated prompt may then get a different answer."""
    temperature = fields.get("temperature", 0)
    return "seed" not in fields and isinstance(temperature, int | float) and temperature > 0
