"""Joins the tool calls in a message, or in the chunks of a stream, into one answer."""

import json
from collections.abc import Mapping
from typing import Any


class Calls:
    """The calls of one reply, in the order of their numbers."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, str]] = {}

    def add(self, choice: Mapping[str, Any]) -> None:
        """Adds the calls of a choice. Names and arguments are strings, and chunks number their calls."""
        inner = choice.get("message") or choice.get("delta")
        found = inner.get("tool_calls") if isinstance(inner, dict) else None
        for place, call in enumerate(found if isinstance(found, list) else ()):
            function = call.get("function") if isinstance(call, dict) else None
            if not isinstance(function, dict):
                continue
            number = call.get("index")
            own = self._calls.setdefault(
                number if isinstance(number, int) else place, {"name": "", "arguments": ""}
            )
            own["name"] = function.get("name") or own["name"]
            own["arguments"] += function.get("arguments") or ""

    def answer(self, text: str) -> str:
        """Returns the calls as a list in OpenAI's form, without their random ids; returns `text` if the reply has no
        calls.
        """
        calls = [
            {"type": "function", "function": self._calls[number]} for number in sorted(self._calls)
        ]
        return json.dumps(calls, separators=(",", ":")) if calls else text
