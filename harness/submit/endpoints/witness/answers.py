"""Splits an answer in the client's events into the two texts whose tokens are counted: the whole answer, and the part
after the first chunk.
"""

import json
from typing import Any, NamedTuple

_KIND = "TextModelOutput"

Message = tuple[str, str, list[Any]]
"""Content, reasoning, and tool calls. The tokenizer's chat template renders all three together."""

Part = str | Message


class Answer(NamedTuple):
    text: str
    """The text that the client scores. This text consists of the reasoning, the content, and the tool calls as JSON."""
    whole: Part
    rest: Part

    @property
    def is_structured(self) -> bool:
        """Whether the answer contains reasoning or tool calls."""
        return not isinstance(self.whole, str)


def read_answer(data: object) -> Answer:
    """Reads an answer from an event.

    data: `[kind, content, reasoning, tool calls]` of a sample.complete event. Each part is either a value or a list of
    chunks.
    """
    if not isinstance(data, list) or not data or data[0] != _KIND:
        return Answer("", "", "")
    content, reasoning, calls = (*data[1:4], None, None, None)[:3]
    text = _joined(content)
    if not reasoning and not calls:
        return Answer(text, text, _after_first(content))
    whole = (text, _joined(reasoning), _merged(calls))
    scored = whole[1] + text + (_as_json(whole[2]) if whole[2] else "")
    # The first chunk belongs to the first of these parts that the answer contains: reasoning, content, tool calls.
    if reasoning:
        is_sent_whole = isinstance(content, str) and isinstance(reasoning, str)
        rest = ("" if is_sent_whole else text, _after_first(reasoning), whole[2])
    elif content:
        rest = (_after_first(content), "", whole[2])
    else:
        rest = ("", "", _merged(calls[1:] if _is_chunked(calls) else calls))
    return Answer(scored, whole, rest)


def _as_json(calls: list[Any]) -> str:
    return json.dumps(calls, separators=(",", ":"), ensure_ascii=False)


def _joined(value: object) -> str:
    if isinstance(value, list):
        return "".join(map(str, value))
    return str(value) if value else ""


def _after_first(value: object) -> str:
    return "".join(map(str, value[1:])) if isinstance(value, list) else ""


def _is_chunked(calls: object) -> bool:
    return isinstance(calls, list) and bool(calls) and isinstance(calls[0], list)


def _merged(calls: object) -> list[Any]:
    """Returns complete tool calls. Pieces of the same call share an index, and their arguments are joined in order."""
    if not isinstance(calls, list) or not _is_chunked(calls):
        return list(calls) if isinstance(calls, list) else []
    found: dict[int, dict[str, Any]] = {}
    for piece in (piece for chunk in calls for piece in chunk):
        empty: dict[str, Any] = {"type": "function", "function": {"arguments": ""}}
        call = found.setdefault(piece.get("index", 0), empty)
        call.update({key: piece[key] for key in ("id", "type") if piece.get(key)})
        function = piece.get("function") or {}
        if function.get("name"):
            call["function"]["name"] = function["name"]
        call["function"]["arguments"] += function.get("arguments") or ""
    return [found[index] for index in sorted(found)]
