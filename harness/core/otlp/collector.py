"""Posts spans or metrics to the OpenTelemetry collector that the user or the environment names.

Source: OpenTelemetry's "OTLP Exporter Configuration" (variable names and their precedence) and OTLP/HTTP. Header values
are secrets, so they never appear in messages, files or logs.
"""

import gzip
import http.client
import json
import re
import ssl
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from harness.core.config.parse import parse_http_url
from harness.core.otlp.values import METRICS, TRACES, Message, encoded
from harness.errors import ConfigError, one_line, refuse

T = TypeVar("T")

TIMEOUT_S = 10.0
_SIGNALS = {TRACES: "TRACES", METRICS: "METRICS"}
"""Maps a path to the signal's name in environment variables."""

_DROPPED = {"rejectedSpans": "spans", "rejectedDataPoints": "data points"}
"""Maps a key in a collector's reply to the name of the items that the collector dropped."""

_HEADER = re.compile(r"\s*([!#$%&'*+.^_`|~0-9A-Za-z-]+)\s*=\s*([\x21-\x7e]*)\s*")
"""Matches a header in the format of W3C Baggage, with a percent-encoded value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Collector:
    """A collector that receives messages as JSON by HTTP POST."""

    url: str
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout_s: float = TIMEOUT_S
    compress: bool = False
    certificate: Path | None = None
    """PEM file of the authority that signed the collector's certificate; None means the system's authorities."""
    option: str = "--otlp"
    """The option with which the user names the collector, for messages."""

    def __str__(self) -> str:
        """Returns the URL without its query, which may contain a key."""
        return self.url.partition("?")[0]


def from_environment(
    variables: Mapping[str, str], path: str = TRACES, option: str = "--otlp", url: str = ""
) -> Collector:
    """Returns the collector that OTEL_EXPORTER_OTLP_TRACES_* (or METRICS_*) defines. If these variables are not set,
    returns the collector that OTEL_EXPORTER_OTLP_* defines.

    path: TRACES or METRICS. url: replaces the address in the variables. Raises a single ConfigError that lists every
    problem.
    """
    problems: list[str] = []
    signal = _SIGNALS[path]

    def read(key: str, parse: Callable[[str], T], default: T) -> T:
        name, text = _variable(variables, key, signal)
        try:
            return parse(text) if text else default
        except ValueError as e:
            problems.append(f"{name}: {e}")
            return default

    name, endpoint = _variable(variables, "ENDPOINT", signal)
    if not endpoint and not url:
        problems.append(f"{option} env: {name} is not set: set it, or pass the collector's URL")
    elif signal not in name and not url:
        variables = {**variables, name: f"{endpoint.rstrip('/')}{path}"}
    read("PROTOCOL", _protocol, "")
    collector = Collector(
        url=url or read("ENDPOINT", _url, ""),
        headers=read("HEADERS", _headers, {}),
        timeout_s=read("TIMEOUT", _seconds, TIMEOUT_S),
        compress=read("COMPRESSION", _compression, "none") == "gzip",
        certificate=read("CERTIFICATE", _pem, None),
        option=option,
    )
    refuse(problems)
    return collector


def _variable(variables: Mapping[str, str], key: str, signal: str) -> tuple[str, str]:
    """Returns the name and the text of the first variable that is set; the text is empty if no variable is set."""
    general = f"OTEL_EXPORTER_OTLP_{key}"
    for name in (f"OTEL_EXPORTER_OTLP_{signal}_{key}", general):
        if text := variables.get(name, "").strip():
            return name, text
    return general, ""


def _url(text: str) -> str:
    return parse_http_url(text, "a collector", "http://127.0.0.1:4318")


def _protocol(text: str) -> str:
    if not text.startswith("http/"):
        raise ValueError(
            f"{text!r} is not supported: name the collector's port for HTTP, which is often 4318, and "
            "set the protocol to http/json"
        )
    return text


def _headers(text: str) -> dict[str, str]:
    """Parses 'api-key=secret,other=value'. Raises a ValueError that states the position of a malformed header, but
    never the header's text.
    """
    headers = {}
    for place, pair in enumerate(text.split(","), start=1):
        match = _HEADER.fullmatch(pair)
        value = unquote(match[2]) if match else "\n"
        if match is None or not value.isascii() or not value.isprintable():
            raise ValueError(f"header {place} is not NAME=VALUE with a percent-encoded value")
        headers[match[1]] = value
    return headers


def _seconds(text: str) -> float:
    """Parses a number of milliseconds and returns seconds."""
    if not re.fullmatch(r"\d{1,9}", text, re.ASCII) or not int(text):
        raise ValueError(f"{text!r} is not a number of milliseconds above 0")
    return int(text) / 1e3


def _compression(text: str) -> str:
    if text not in ("gzip", "none"):
        raise ValueError(f"{text!r} is neither gzip nor none")
    return text


def _pem(text: str) -> Path | None:
    if not Path(text).is_file():
        raise ValueError(f"{text} does not exist")
    return Path(text)


def post(messages: Iterable[Message], collector: Collector) -> None:
    """Posts the messages without using proxies or following redirects. Raises ConfigError if the collector refuses any
    message.
    """
    parts = urlsplit(collector.url)
    headers = {**collector.headers, "Content-Type": "application/json"}
    if collector.compress:
        headers["Content-Encoding"] = "gzip"
    target = f"{parts.path or '/'}?{parts.query}" if parts.query else parts.path or "/"
    connection = None
    try:
        connection = _connection(collector)
        for message in messages:
            body = encoded(message)
            connection.request(
                "POST", target, gzip.compress(body) if collector.compress else body, headers
            )
            answer = connection.getresponse()
            text = answer.read()
            if answer.status != 200:
                raise ConfigError(
                    f"{collector.option} {collector} answered {answer.status} {answer.reason}: check its URL and its log"
                )
            if refused := _refused(text):
                raise ConfigError(f"{collector.option} {collector}: {refused}")
    except (OSError, http.client.HTTPException) as e:
        why = one_line(e) or type(e).__name__
        raise ConfigError(
            f"{collector.option} {collector} did not accept the data ({why}): check that a collector listens there"
        ) from None
    finally:
        if connection is not None:
            connection.close()


def _connection(collector: Collector) -> http.client.HTTPConnection:
    parts = urlsplit(collector.url)
    assert parts.hostname is not None  # the parser has already checked the scheme
    if parts.scheme == "http":
        return http.client.HTTPConnection(parts.hostname, parts.port, timeout=collector.timeout_s)
    context = ssl.create_default_context(cafile=collector.certificate)
    return http.client.HTTPSConnection(
        parts.hostname, parts.port, timeout=collector.timeout_s, context=context
    )


def _refused(body: bytes) -> str:
    """Returns the collector's report about dropped spans or data points; "" if the collector dropped nothing."""
    try:
        partial = json.loads(body or b"{}").get("partialSuccess") or {}
        counts = {noun: int(partial.get(key, 0)) for key, noun in _DROPPED.items()}
        why = partial.get("errorMessage", "")
    except (ValueError, TypeError, AttributeError):
        return ""  # the server that sent status 200 is not a collector
    dropped = [f"{count:,} {noun}" for noun, count in counts.items() if count]
    why = why or "it gives no reason"
    return one_line(f"it dropped {' and '.join(dropped)}: {why}") if dropped else ""
