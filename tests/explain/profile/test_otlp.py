"""Spans as OTLP, in a file and at a collector, read with the protocol's own package."""

import shutil
import socket
import ssl
import subprocess
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.core.otlp.collector import Collector, _refused, from_environment, post
from harness.core.otlp.values import encoded
from harness.errors import ConfigError
from harness.explain.profile.options import parse_otlp
from harness.explain.profile.spans import otlp
from harness.explain.profile.spans.spans import Span
from tests.servers import real_servers
from tests.stand_ins.servers.metrics.otlp_collector import collecting, spans_of
from tests.stand_ins.servers.metrics.prometheus_server import free_port

ROTEL_ENDED_S = 30

STARTED = "2026-11-21T13:00:00.123+00:00"
STARTED_NS = 1795266000_123_000_000
SPANS = [
    Span(id=1, name="query", level="query", start_ns=5_000, end_ns=9_001, lane="queries 0"),
    Span(
        id=2,
        name="conv é",
        level="layer",
        start_ns=6_007,
        end_ns=6_007,
        parent=1,
        ambiguous=True,
        tags={"op": "Conv", "nodes": [0, 2], "first sample": 7, "share": 0.5, "warm": False},
    ),
]


def attributes(span: Any) -> dict[str, Any]:
    found = {}
    for pair in span.attributes:
        kind = pair.value.WhichOneof("value")
        value = getattr(pair.value, kind)
        found[pair.key] = [v.int_value for v in value.values] if kind == "array_value" else value
    return found


def test_the_protocol_package_reads_every_span(tmp_path: Path) -> None:
    file = tmp_path / "spans.jsonl"
    otlp.write(otlp.messages(SPANS, STARTED, "m"), file)
    (line,) = file.read_bytes().splitlines()
    query, layer = spans_of(line)
    assert datetime.fromtimestamp(STARTED_NS // 10**9, UTC).isoformat()[:19] == STARTED[:19]
    assert (query.start_time_unix_nano, query.end_time_unix_nano) == (STARTED_NS, STARTED_NS + 4001)
    assert (layer.start_time_unix_nano, layer.end_time_unix_nano) == (STARTED_NS + 1007,) * 2
    assert (query.span_id, query.parent_span_id) == (b"\0\0\0\0\0\0\0\1", b"")
    assert layer.parent_span_id == query.span_id
    assert layer.trace_id == query.trace_id
    assert len(query.trace_id) == 16
    assert any(query.trace_id)
    assert (layer.name, layer.kind) == ("conv é", 1)
    assert attributes(layer) == {
        "harness.id": 2,
        "harness.level": "layer",
        "harness.group": "run",
        "harness.lane": "",
        "harness.ambiguous": True,
        "harness.op": "Conv",
        "harness.nodes": [0, 2],
        "harness.first_sample": 7,
        "harness.share": 0.5,
        "harness.warm": False,
    }


def test_the_trace_id_is_stable_and_differs_between_profiles() -> None:
    def trace(started: str, model: str) -> str:
        (message,) = otlp.messages(SPANS, started, model)
        found: str = message["resourceSpans"][0]["scopeSpans"][0]["spans"][0]["traceId"]
        return found

    assert trace(STARTED, "m") == trace(STARTED, "m")
    assert len({trace(STARTED, "m"), trace(STARTED, "n"), trace(f"2025{STARTED[4:]}", "m")}) == 3


def test_a_message_has_no_more_spans_than_collectors_accept() -> None:
    many = [Span(id=i, name="", level="query", start_ns=i, end_ns=i) for i in range(1, 2_502)]
    sizes = [len(spans_of(encoded(m))) for m in otlp.messages(many, STARTED, "m")]
    assert sizes == [1_000, 1_000, 501]
    assert list(otlp.messages([], STARTED, "m")) == []


def test_a_collector_gets_every_span() -> None:
    with collecting() as collector:
        post(otlp.messages(SPANS, STARTED, "m"), Collector(url=str(parse_otlp(collector.address))))
        assert [span.name for span in collector.received] == ["query", "conv é"]
        assert collector.paths == ["/v1/traces"]


@pytest.mark.parametrize(
    ("status", "answer", "message"),
    [
        (503, b"", "/v1/traces answered 503 Service Unavailable: check its URL and its log$"),
        (200, b'{"partialSuccess": {"rejectedSpans": "2", "errorMessage": "too\\nmany"}}', "it dropped 2 spans: too many$"),
    ],
)  # fmt: skip
def test_a_refusing_collector_is_reported_in_one_line(
    status: int, answer: bytes, message: str
) -> None:
    with collecting() as collector:
        collector.status, collector.answer = status, answer
        with pytest.raises(ConfigError, match=message):
            post(
                otlp.messages(SPANS, STARTED, "m"), Collector(url=f"{collector.address}/v1/traces")
            )


@pytest.mark.parametrize("answer", [b"", b"ok", b"[]", b'{"partialSuccess": {"rejectedSpans": 0}}'])
def test_a_collector_that_only_answers_200_has_accepted_all_spans(answer: bytes) -> None:
    assert _refused(answer) == ""


def test_a_missing_collector_is_reported_in_one_line() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(
        ConfigError,
        match=r"did not accept the data \(.*refused\): check that a collector listens there$",
    ):
        post(
            otlp.messages(SPANS, STARTED, "m"), Collector(url=f"http://127.0.0.1:{port}/v1/traces")
        )


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("spans.jsonl", Path("spans.jsonl")),
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/traces"),
        ("https://c.example/", "https://c.example/v1/traces"),
        ("http://c:1/otlp/traces?a=b", "http://c:1/otlp/traces?a=b"),
    ],
)
def test_a_target_is_a_file_or_an_address(text: str, target: Path | str) -> None:
    assert parse_otlp(text) == target


@pytest.mark.parametrize(
    "text",
    [
        "grpc://c:4317",
        "http://",
        "http://c:x",
        "http://a:b@c",
        "http://c/a b",
        "http://[c",
        "://",
        "http://é",
    ],
)
def test_an_invalid_collector_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a collector: write http://HOST:PORT"):
        parse_otlp(text)


def test_an_invalid_start_time_is_refused() -> None:
    with pytest.raises(ValueError, match="yesterday"):
        otlp.messages([], "yesterday", "m")


def variables(**values: str) -> dict[str, str]:
    return {f"OTEL_EXPORTER_OTLP_{name}": value for name, value in values.items()}


SECRET = "glc_s3cret=="
HEADERS = f"Authorization=Basic%20{SECRET.replace('=', '%3D')} , x-scope-orgid=7"


def test_the_environment_names_the_collector_and_its_headers() -> None:
    with collecting() as collector:
        named = variables(ENDPOINT=f"{collector.address}/", HEADERS=HEADERS, COMPRESSION="gzip")
        named |= variables(PROTOCOL="http/protobuf", TIMEOUT="2500", TRACES_TIMEOUT="")
        chosen = from_environment(named)
        post(otlp.messages(SPANS, STARTED, "m"), chosen)
    assert chosen.timeout_s == 2.5
    assert [span.name for span in collector.received] == ["query", "conv é"]
    assert collector.paths == ["/v1/traces"]
    (headers,) = collector.headers
    assert headers["Authorization"] == f"Basic {SECRET}"
    assert headers["x-scope-orgid"] == "7"
    assert headers["Content-Encoding"] == "gzip"
    assert SECRET not in repr(chosen)


def test_trace_variables_win_and_their_endpoint_is_used_unchanged() -> None:
    general, traces = "http://general:4318/base", "https://traces.example/otlp?key=k"
    named = variables(ENDPOINT=general, TRACES_ENDPOINT=traces, HEADERS="a=1", TRACES_HEADERS="b=2")
    chosen = from_environment(named)
    assert (chosen.url, chosen.headers) == ("https://traces.example/otlp?key=k", {"b": "2"})
    assert str(chosen) == "https://traces.example/otlp"
    other = from_environment(variables(ENDPOINT=general))
    assert (other.url, other.headers) == ("http://general:4318/base/v1/traces", {})


def test_every_wrong_variable_is_named_and_no_header_is_shown() -> None:
    named = variables(PROTOCOL="grpc", ENDPOINT="collector:4317", HEADERS=f"a=1,{SECRET} x")
    named |= variables(TRACES_TIMEOUT="10s", COMPRESSION="zstd", CERTIFICATE="/no/such.pem")
    with pytest.raises(ConfigError) as raised:
        from_environment(named)
    assert [line.partition(":")[0] for line in str(raised.value).splitlines()] == list(named)
    assert "header 2 is not NAME=VALUE" in str(raised.value)
    assert SECRET not in str(raised.value)
    with pytest.raises(ConfigError, match=r"^--otlp env: OTEL_EXPORTER_OTLP_ENDPOINT is not set"):
        from_environment({})


@pytest.mark.parametrize("headers", ["a=1%0d%0ab: 2", "a b=1", "=1", "a=é", "a=1,,b=2"])
def test_a_header_cannot_hold_another(headers: str) -> None:
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}
    with pytest.raises(ConfigError, match=r"header \d is not NAME=VALUE"):
        from_environment({**variables, "OTEL_EXPORTER_OTLP_HEADERS": headers})


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_https_needs_an_authority_that_signed_the_certificate(tmp_path: Path) -> None:
    pem, key = tmp_path / "c.pem", tmp_path / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    about = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    subprocess.run([*made, *about, "-keyout", key, "-out", pem], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key)
    with collecting(context) as collector:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.address}
        with pytest.raises(ConfigError, match="CERTIFICATE_VERIFY_FAILED"):
            post(otlp.messages(SPANS, STARTED, "m"), from_environment(variables))
        variables["OTEL_EXPORTER_OTLP_CERTIFICATE"] = str(pem)
        post(otlp.messages(SPANS, STARTED, "m"), from_environment(variables))
        assert len(collector.received) == 2


@pytest.mark.slow
@pytest.mark.parametrize("compress", [False, True])
def test_a_real_collector_reads_every_span(
    compress: bool, pytestconfig: pytest.Config, tmp_path: Path
) -> None:
    made = real_servers.environment(Path(pytestconfig.cache.mkdir("servers")), "rotel")
    (program,) = made.glob("lib/python3*/site-packages/rotel/rotel-agent")
    port, log = free_port(), tmp_path / "log"
    words = ["start", "--otlp-http-endpoint", f"127.0.0.1:{port}", "--exporter", "blackhole"]
    words += ["--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}", "--log-file", f"{tmp_path}/own"]
    words += ["--debug-log", "traces", "--debug-log-verbosity", "detailed"]
    spans = [replace(SPANS[0], id=number) for number in range(1, 2_501)] + [
        replace(SPANS[1], id=9_999)
    ]
    with log.open("w") as out:
        process = subprocess.Popen([program, *words], stdout=out, stderr=out)
    try:
        deadline_s = time.monotonic() + ROTEL_ENDED_S
        while "Starting Rotel" not in log.read_text():
            assert time.monotonic() < deadline_s, log.read_text()
            time.sleep(0.1)
        collector = Collector(url=f"http://127.0.0.1:{port}/v1/traces", compress=compress)
        post(otlp.messages(spans, STARTED, "m"), collector)
        while log.read_text().count("\nSpan #") < len(spans):
            assert time.monotonic() < deadline_s, log.read_text()[-2000:]
            time.sleep(0.1)
    finally:
        process.terminate()
        process.wait()
    told = log.read_text()
    assert told.count("\nSpan #") == len(spans)
    assert f"Start time: {STARTED_NS}\n" in told
    for line in ("-> service.name: Str(mlperf-harness)", ": conv é\n", ": 000000000000270f\n"):
        assert line in told
