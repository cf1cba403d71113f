"""Exports a profile's spans as OTLP/JSON, and writes the spans as lines of a file.

Source: OpenTelemetry protocol 1.x, "OTLP/HTTP, JSON Protobuf Encoding" (ids in hexadecimal, enums as
integers, 64-bit integers as text), and its file exporter (one message per line).
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

from harness import __version__
from harness.core.otlp.values import Message, attributes, encoded
from harness.errors import ConfigError
from harness.explain.profile.spans.spans import Span

SPANS_A_MESSAGE = 1_000
"""A message contains at most this many spans (about 400 kB), so that a receiver need not hold a whole profile in one
line or request.
"""

_INTERNAL = 1  # SPAN_KIND_INTERNAL
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def messages(spans: Sequence[Span], started: str, model: str) -> Iterator[Message]:
    """Returns the messages of one trace.

    The trace ID is derived from `started` and `model`. If spans are sent twice, both copies therefore belong to the
    same trace.
    started: time of the first span, in ISO 8601 with zone. Raises TypeError or ValueError for other text.
    """
    # The time is computed in integers, because a float resolves the time since 1970 only to 256 ns.
    started_ns = (datetime.fromisoformat(started) - _EPOCH) // timedelta(microseconds=1) * 1_000
    offset_ns = started_ns - min((span.start_ns for span in spans), default=0)
    trace_id = hashlib.sha256(f"{started} {model}".encode()).hexdigest()[:32]
    otlp_spans = (_span(span, trace_id, offset_ns) for span in spans)
    scope = {"name": "harness.profile", "version": __version__}
    resource = attributes({"service.name": "mlperf-harness", "harness.model": model})
    chunks = iter(lambda: list(islice(otlp_spans, SPANS_A_MESSAGE)), [])
    scoped = ([{"scope": scope, "spans": chunk}] for chunk in chunks)
    about = {"attributes": resource}
    return ({"resourceSpans": [{"resource": about, "scopeSpans": one}]} for one in scoped)


def _span(span: Span, trace_id: str, offset_ns: int) -> dict[str, Any]:
    tags = {
        "harness.id": span.id,
        "harness.level": span.level,
        "harness.group": span.group,
        "harness.lane": span.lane,
        **({"harness.ambiguous": True} if span.ambiguous else {}),
        **{f"harness.{name.replace(' ', '_')}": value for name, value in span.tags.items()},
    }
    parent = {} if span.parent is None else {"parentSpanId": f"{span.parent:016x}"}
    return {
        "traceId": trace_id,
        "spanId": f"{span.id:016x}",
        **parent,
        "name": span.name,
        "kind": _INTERNAL,
        "startTimeUnixNano": str(span.start_ns + offset_ns),
        "endTimeUnixNano": str(span.end_ns + offset_ns),
        "attributes": attributes(tags),
    }


def write(messages_: Iterable[Message], file: Path) -> None:
    """Writes one message per line. Raises ConfigError if the file exists or cannot be written."""
    try:
        with file.open("xb") as out:
            for message in messages_:
                out.write(encoded(message) + b"\n")
    except OSError as e:
        raise ConfigError(f"--otlp {file} cannot be written: {e.strerror}") from None
