"""Reads OpenTelemetry spans of language models, as OTLP's JSON, as one span per line, or as a line per session with
`spans`.

The names of attributes are from OpenTelemetry's conventions for GenAI: `gen_ai.input.messages` (in parts or as OpenAI's
messages), `gen_ai.system_instructions`, `gen_ai.tool.definitions` and `gen_ai.usage.output_tokens`. The times of the
spans show which earlier calls each call waited for. Spans without messages, failed spans, and spans of tools and agents
are skipped.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from harness.core.files import parse_json
from harness.core.units import NS_PER_US
from harness.datasets.parts.sessions.timeline import Interval, waits
from harness.datasets.parts.sessions.turns import Turn, list_of

_CALLS = ("chat", "generate", "generate_content", "text_completion", None)
"""Values of gen_ai.operation.name for calls of a model. None stands for a span without this attribute."""
_FAILED = (2, "STATUS_CODE_ERROR", "ERROR")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Call(NamedTuple):
    interval: Interval
    number: int
    row: Mapping[str, Any]


class Span(NamedTuple):
    place: str
    group: str
    """Name of the conversation, or of the trace if the span does not name a conversation."""
    span: Mapping[str, Any]
    attributes: Mapping[str, Any]


def spans_of(place: str, content: Mapping[str, Any]) -> Iterator[Span]:
    """Yields the spans in one object of a file, in any of the three formats."""
    if "resourceSpans" in content:
        for resource in list_of(content, "resourceSpans"):
            for scope in list_of(resource, "scopeSpans"):
                for span in list_of(scope, "spans"):
                    yield _span(place, span, _plain(span), str(span.get("traceId", "")))
        return
    if isinstance(content.get("spans"), list):
        for span in content["spans"]:
            yield _span(place, span, _plain(span), place)
        return
    yield _span(
        place, content, _plain(content), str(content.get("trace_id") or content.get("traceId", ""))
    )


def _span(place: str, span: Mapping[str, Any], attributes: Mapping[str, Any], trace: str) -> Span:
    conversation = attributes.get("gen_ai.conversation.id")
    return Span(place, str(conversation or trace), span, attributes)


def _plain(span: object) -> Mapping[str, Any]:
    """Returns a span's attributes as an object. The span stores the attributes as an object, or as OTLP's list of keys
    and values.
    """
    attributes = span.get("attributes", []) if isinstance(span, dict) else None
    if isinstance(attributes, list):
        return {one["key"]: _value(one["value"]) for one in attributes}
    if not isinstance(attributes, dict):
        raise ValueError("a span has no `attributes` object or list")
    return attributes


def _value(value: Mapping[str, Any]) -> Any:
    """Returns a value of OTLP's JSON, e.g. {"stringValue": "x"}."""
    if "intValue" in value:
        return int(value["intValue"])
    if "arrayValue" in value:
        return [_value(one) for one in value["arrayValue"].get("values", [])]
    if "kvlistValue" in value:
        return {one["key"]: _value(one["value"]) for one in value["kvlistValue"].get("values", [])}
    return next(iter(value.values()), None)


def sessions(spans: Sequence[Span]) -> Iterator[tuple[str, list[Turn]]]:
    """Yields the sessions with the place of their first span. Raises a ValueError that names the place."""
    grouped: dict[str, tuple[str, list[_Call]]] = {}
    for number, span in enumerate(spans):
        try:
            call = _call(span, number)
        except (ValueError, KeyError, TypeError) as e:
            raise ValueError(f"{span.place}: {_sentence(e)}") from None
        if call is not None:
            grouped.setdefault(span.group, (span.place, []))[1].append(call)
    for place, calls in grouped.values():
        calls.sort()
        found = waits([call.interval for call in calls])
        yield place, [Turn(c.row, w.after, w.delay_ns) for c, w in zip(calls, found, strict=True)]


def _sentence(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else f"a span lacks the key {error}"


def _call(span: Span, number: int) -> _Call | None:
    """Converts a span to a call. Returns None if the span is not an answered model call, or has no messages."""
    attributes, status = span.attributes, span.span.get("status")
    failed = isinstance(status, dict) and status.get("code") in _FAILED
    asked = attributes.get("gen_ai.input.messages")
    if failed or not asked or attributes.get("gen_ai.operation.name") not in _CALLS:
        return None
    row: dict[str, Any] = {"messages": [*_instructions(attributes), *messages(asked)]}
    output = attributes.get(
        "gen_ai.usage.output_tokens", attributes.get("gen_ai.usage.completion_tokens")
    )
    if output:
        row["max_tokens"] = int(output)
    tools = _decoded(attributes.get("gen_ai.tool.definitions"))
    if isinstance(tools, list) and tools:
        row["tools"] = [
            tool if "function" in tool else {"type": "function", "function": tool} for tool in tools
        ]
    start_ns = _time_ns(span.span, "startTimeUnixNano", "start_time")
    end_ns = _time_ns(span.span, "endTimeUnixNano", "end_time", start_ns)
    return _Call(Interval(start_ns, max(start_ns, end_ns)), number, row)


def _time_ns(
    span: Mapping[str, Any], nanoseconds: str, date: str, default: int | None = None
) -> int:
    if nanoseconds in span:
        return int(span[nanoseconds])
    value = span.get(date)
    if value is None and default is not None:
        return default
    try:
        at = datetime.fromisoformat(str(value))
    except ValueError:
        raise ValueError(f"{date} is {value!r:.40}, but must be a date and time") from None
    since = (at if at.tzinfo else at.replace(tzinfo=UTC)) - _EPOCH
    return since // timedelta(microseconds=1) * NS_PER_US


def _decoded(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return parse_json(value)
    except json.JSONDecodeError:
        raise ValueError("an attribute with messages is not valid JSON") from None


def _instructions(attributes: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    parts = _decoded(attributes.get("gen_ai.system_instructions"))
    if not isinstance(parts, list) or not parts:
        return []
    return [{"role": "system", "content": _texts(parts)}]


def messages(value: Any) -> list[Mapping[str, Any]]:
    """Converts `gen_ai.input.messages` to OpenAI's messages. Raises ValueError if the value has no messages."""
    rows = _decoded(value)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError("gen_ai.input.messages must be a list of messages")
    found: list[Mapping[str, Any]] = []
    for row in rows:
        if isinstance(row.get("parts"), list):
            found += _of_parts(
                row.get("role"), [part for part in row["parts"] if isinstance(part, dict)]
            )
        else:
            found.append(row)
    return found


def _of_parts(role: Any, parts: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yields the message, and then one message for each tool result. Skips parts that contain reasoning."""
    calls = [_tool_call(part) for part in parts if part.get("type") == "tool_call"]
    texts = [part for part in parts if part.get("type") == "text"]
    if texts or calls:
        content = {"content": _texts(texts) if texts else None}
        yield {"role": role or "user", **content, **({"tool_calls": calls} if calls else {})}
    for part in parts:
        if part.get("type") == "tool_call_response":
            result = part.get("response", part.get("result", ""))
            text = result if isinstance(result, str) else json.dumps(result)
            yield {"role": "tool", "tool_call_id": str(part.get("id") or ""), "content": text}


def _texts(parts: Sequence[Any]) -> str:
    return "".join(
        str(part.get("content", "")) if isinstance(part, dict) else str(part) for part in parts
    )


def _tool_call(part: Mapping[str, Any]) -> Mapping[str, Any]:
    arguments = part.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    function = {"name": part.get("name") or "", "arguments": text}
    return {"id": str(part.get("id") or ""), "type": "function", "function": function}
