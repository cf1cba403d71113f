"""Encodes OTLP attributes and messages as JSON.

Source: OpenTelemetry protocol 1.x, "OTLP/HTTP, JSON Protobuf Encoding" (ids in hexadecimal, enums as
integers, 64-bit integers as strings).
"""

import json
from collections.abc import Mapping
from typing import Any

TRACES, METRICS = "/v1/traces", "/v1/metrics"
"""URL paths on which collectors listen by default."""

Message = Mapping[str, Any]
"""An ExportTraceServiceRequest or ExportMetricsServiceRequest, which is also a TracesData or MetricsData."""


def attributes(values: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": key, "value": _value(value)} for key, value in values.items()]


def _value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_value(one) for one in value]}}
    return {"stringValue": str(value)}


def encoded(message: Message) -> bytes:
    return json.dumps(message, allow_nan=False, separators=(",", ":")).encode()
