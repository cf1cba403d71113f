"""Reads the recorded agent sessions that MLPerf's Endpoints client replays. Each line is a message from a user, a tool
or the model.

A message from a user or from tools is a turn, whose prompt is the session up to this line. `delay_seconds` is the time
that
the tools take. Source: mlcommons/endpoints, dataset_manager/agentic_inference_dataset.py.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core.units import NS_PER_S
from harness.datasets.parts.sessions.turns import Turn, list_of, number_of, whole_of

_SENT = ("role", "content", "name", "tool_calls", "reasoning_content")
"""Keys of a message that are included in requests."""

_ROLES = ("user", "tool", "assistant")


def is_line(row: Mapping[str, Any]) -> bool:
    return "conversation_id" in row and "turn" in row and row.get("role") in _ROLES


def sessions(
    rows: Sequence[tuple[str, Mapping[str, Any]]], settings: Mapping[str, Any]
) -> Iterator[tuple[str, list[Turn]]]:
    """Yields the sessions with the place of their first line, in the order of the first lines.

    rows: place and content of each line. settings: fields of every request. Raises a ValueError that names the place.
    """
    grouped: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    for place, row in rows:
        grouped.setdefault(str(row.get("conversation_id")), []).append((place, row))
    for lines in grouped.values():
        yield lines[0][0], _session(lines, settings)


def _session(
    lines: Sequence[tuple[str, Mapping[str, Any]]], settings: Mapping[str, Any]
) -> list[Turn]:
    turns: list[Turn] = []
    system = next((row["system"] for _, row in lines if row.get("system")), None)
    tools = next((row["tools"] for _, row in lines if row.get("tools")), None)
    fields = {**settings, **({"tools": tools} if tools else {})}
    history: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    numbers: set[int] = set()
    for place, row in lines:
        try:
            number = whole_of(row, "turn")
            if number in numbers or (numbers and number < max(numbers)):
                raise ValueError(f"turn {number} is out of order")
            numbers.add(number)
            history += _messages(row)
            if row["role"] == "assistant":
                continue
            waited_ns = round(number_of(row, "delay_seconds", 0) * NS_PER_S)
        except ValueError as e:
            raise ValueError(f"{place}: {e}") from None
        after = (len(turns) - 1,) if turns else ()
        turns.append(Turn({**fields, "messages": [*history]}, after, waited_ns))
    return turns


def _messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the messages of a line: one message, or one per tool result."""
    role = row.get("role")
    if role not in _ROLES:
        raise ValueError(f"the role is {role!r:.40}: use {', '.join(_ROLES)}")
    if role != "tool":
        message = {key: row[key] for key in _SENT if row.get(key) is not None}
        return [{"content": None, **message} if message.get("tool_calls") else message]
    results = list_of(row, "tool_results")
    if not results:
        raise ValueError("a tool line needs `tool_results`, a list of at least one result")
    for result in results:
        if not isinstance(result, dict) or not {"tool_call_id", "content"} <= {*result}:
            raise ValueError("a tool result needs `tool_call_id` and `content`")
    return [
        {"role": "tool", "tool_call_id": one["tool_call_id"], "content": one["content"]}
        for one in results
    ]
