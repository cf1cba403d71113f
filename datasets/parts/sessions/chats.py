"""Reads recorded chats: ShareGPT, OpenAI's messages with tool calls (SWE-smith, mini-SWE-agent), and SWE-agent.

Each answer from the model is a turn, whose prompt is the chat before the answer. Only SWE-agent's format records the
time that a tool takes (`execution_time`). In the other formats, tools and people are assumed to take no time.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from harness.core.files import parse_json
from harness.core.units import NS_PER_S
from harness.datasets.parts.sessions.turns import Turn, list_of, number_of

_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt"), "assistant"),
    "system": "system",
    **dict.fromkeys(("tool", "observation", "function"), "tool"),
}
_SENT = ("role", "content", "name", "tool_calls", "tool_call_id")
"""Keys of a message that are included in requests. Traces also contain other keys, e.g. `extra` and `message_type`."""


def session(content: Mapping[str, Any]) -> list[Turn]:
    """Reads the list `conversations` or `messages`. The list may also be a string that contains JSON, as in SWE-smith's
    tables.
    """
    rows = content.get("conversations", content.get("messages"))
    if isinstance(rows, str):
        try:
            rows = parse_json(rows)
        except json.JSONDecodeError:
            raise ValueError("messages is a string that is not valid JSON") from None
    if not isinstance(rows, list):
        raise ValueError(
            "a chat needs `messages` or `conversations`, a list of at least one message"
        )
    return _turns([message(row) for row in rows], content)


def _turns(messages: Sequence[Mapping[str, Any]], content: Mapping[str, Any]) -> list[Turn]:
    turns: list[Turn] = []
    fields = {key: content[key] for key in ("tools", "max_tokens") if content.get(key)}
    for place, one in enumerate(messages):
        is_answer = one["role"] == "assistant"
        if is_answer and place and messages[place - 1]["role"] != "assistant":
            turns.append(_turn(messages[:place], fields, len(turns), one.get("content")))
    if messages and messages[-1]["role"] in ("user", "tool"):
        turns.append(_turn(messages, fields, len(turns), None))
    if not turns:
        raise ValueError("it has no message that the model can answer")
    return turns


def _turn(
    messages: Sequence[Mapping[str, Any]], fields: Mapping[str, Any], number: int, answer: object
) -> Turn:
    reference = {"reference": answer} if isinstance(answer, str) and answer else {}
    row = {**fields, **reference, "messages": [*messages]}
    return Turn(row, (number - 1,) if number else ())


def message(row: object) -> dict[str, Any]:
    """Returns a message in the format of OpenAI's API. Raises a ValueError if the message cannot be sent."""
    if not isinstance(row, dict):
        raise ValueError(f"a message is {row!r:.40}, but must be an object")
    given = str(row.get("from", row.get("role")))
    role = _ROLES.get(given)
    if role is None:
        raise ValueError(
            f"a message has the role {given!r:.40}: use system, user, assistant or tool"
        )
    content = row.get("value", row.get("content"))
    found = {"role": role, "content": content, **{k: row[k] for k in _SENT[2:] if row.get(k)}}
    if role == "tool" and not found.get("tool_call_id"):
        # The observation is sent as a user message, because an observation in ShareGPT does not identify the call that
        # it belongs to.
        found = {"role": "user", "content": content}
    if not isinstance(found["content"], str | list) and not found.get("tool_calls"):
        raise ValueError(f"a message of role {role!r} has no content")
    return found


def trajectory(content: Mapping[str, Any]) -> list[Turn]:
    """Reads .traj files of SWE-agent 1.1 and later. The field `query` of a step contains the messages that the model
    received.
    """
    turns: list[Turn] = []
    spent_ns = 0
    for number, step in enumerate(list_of(content, "trajectory")):
        query = step.get("query") if isinstance(step, dict) else None
        if not isinstance(query, list) or not query:
            raise ValueError(
                f"step {number + 1} has no `query`, which SWE-agent records from version 1.1 on"
            )
        response = step.get("response")
        reference = {"reference": response} if isinstance(response, str) and response else {}
        row = {**reference, "messages": [message(one) for one in query]}
        turns.append(Turn(row, (number - 1,) if number else (), spent_ns))
        spent_ns = round(number_of(step, "execution_time", 0) * NS_PER_S)
    if not turns:
        raise ValueError("its `trajectory` has no steps")
    return turns
