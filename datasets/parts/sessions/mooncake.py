"""Reads Mooncake's traces, with one request per line. The lines may contain the keys that AIPerf adds.

Mooncake records `input_length`, `output_length` and `hash_ids` (the IDs of the prompt's blocks of 512 tokens). AIPerf
adds `session_id`, `delay` (ms), `text_input`, `messages`, `tools`, `payload` and `extra`. A line without `session_id`
is a session with one turn.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.datasets.parts.sessions.turns import Blocks, Turn, delay_ns, ids_of, whole_of

_PROMPTS = ("input_length", "text_input", "messages", "payload")
_OUTSIDE = ("messages", "prompt", "max_tokens")


def sessions(
    rows: Sequence[tuple[str, Mapping[str, Any]]], block_tokens: int
) -> Iterator[tuple[str, list[Turn]]]:
    """Yields the sessions with the place of their first line, in the order of their first lines.

    rows: place and content of each line. Raises a ValueError that names the place.
    """
    grouped: dict[str, tuple[str, list[Turn]]] = {}
    for number, (place, row) in enumerate(rows):
        key = row.get("session_id")
        _, turns = grouped.setdefault(
            f"of {key}" if key is not None else f"line {number}", (place, [])
        )
        try:
            turns.append(_turn(row, len(turns), block_tokens))
        except ValueError as e:
            raise ValueError(f"{place}: {e}") from None
    yield from grouped.values()


def _turn(row: Mapping[str, Any], number: int, block_tokens: int) -> Turn:
    kinds = [kind for kind in _PROMPTS if row.get(kind) is not None]
    if len(kinds) != 1:
        raise ValueError(
            f"it needs one of {', '.join(_PROMPTS)}, but has {' and '.join(kinds) or 'none'}"
        )
    after = (number - 1,) if number else ()
    waited_ns = delay_ns(row, "delay")
    fields: dict[str, Any] = {}
    if row.get("output_length") is not None:
        fields["max_tokens"] = max(1, whole_of(row, "output_length"))
    if isinstance(row.get("extra"), dict):
        fields["body"] = row["extra"]
    if kinds == ["input_length"]:
        tokens = whole_of(row, "input_length")
        if not tokens:
            raise ValueError("input_length is 0: a prompt has at least one token")
        blocks = Blocks(0, ids_of(row), block_tokens, tokens)
        return Turn(fields, after, waited_ns, blocks=blocks)
    return Turn({**fields, **_prompt(row, kinds[0])}, after, waited_ns)


def _prompt(row: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    if kind == "text_input":
        return {"prompt": row[kind]}
    if kind == "messages":
        return {"messages": row[kind], **({"tools": row["tools"]} if row.get("tools") else {})}
    payload = row["payload"]
    if not isinstance(payload, dict):
        raise ValueError(f"payload is {payload!r:.40}, but must be an object")
    inside = {k: v for k, v in payload.items() if k not in (*_OUTSIDE, "stream", "stream_options")}
    return {**{k: payload[k] for k in _OUTSIDE if k in payload}, "body": inside}
