"""Metrics of servers: vLLM's and Triton's pages become the same columns, or a reason explains the absence."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from harness.core.config.address import parse_address
from harness.core.config.run_config import RunConfig
from harness.models.opened.remote import metrics_pages
from harness.wire.connections import Server
from harness.wire.server_metrics import NO_PAGE, ServerMetrics, parse

VLLM = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny {x}"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny {x}"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny {x}"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny {x}"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny {x}"} 0.5
vllm:generation_tokens_total{engine="0",model_name="tiny {x}"} 1.5e+03
vllm:generation_tokens_created{engine="0",model_name="tiny {x}"} 1.79e+09
vllm:request_success_total{finished_reason="stop"} 5.0 1795442503079
vllm:request_success_total{finished_reason="length"} 2.0
"""
TRITON = """\
# HELP nv_inference_count Number of inferences performed
nv_inference_count{model="digits",version="1"} 640
nv_inference_exec_count{model="digits",version="1"} 20
nv_inference_pending_request_count{model="digits",version="1"} 4
nv_gpu_utilization{gpu_uuid="GPU-1"} 0.75
nv_gpu_utilization{gpu_uuid="GPU-2"} NaN
"""


def test_engines_are_added_and_of_shares_the_largest_counts() -> None:
    assert parse(VLLM) == {
        "running_requests": 4.0,
        "waiting_requests": 7.0,
        "kv_cache_share": 0.5,
        "generated_tokens": 1500.0,
        "answered_requests": 7.0,
    }


def test_triton_metrics_are_known_and_values_without_a_number_ignored() -> None:
    assert parse(TRITON) == {
        "inferences": 640.0,
        "executions": 20.0,
        "waiting_requests": 4.0,
        "gpu_share": 0.75,
    }


@contextmanager
def serving(pages: Sequence[tuple[int, str]]) -> Iterator[tuple[Server, list[str]]]:
    """A server that sends one page after another, then repeats the last page; the requested paths."""
    left, paths = [*pages], []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            paths.append(self.path)
            status, text = left.pop(0) if len(left) > 1 else left[0]
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            address = parse_address(f"http://127.0.0.1:{server.server_port}/metrics")
            yield Server(address=address), paths
        finally:
            server.shutdown()
            thread.join()


def looked(*servers: Server, times: int = 2) -> ServerMetrics:
    found = ServerMetrics(servers)
    for _ in range(times):
        found.look()
    found.close()
    return found


def test_replicas_are_added_in_one_row() -> None:
    with serving([(200, VLLM)]) as (one, paths), serving([(200, VLLM)]) as (two, _):
        found = looked(one, two)
    assert [row["waiting_requests"] for row in found.rows] == [14.0, 14.0]
    assert [row["kv_cache_share"] for row in found.rows] == [0.5, 0.5]
    assert found.rows[0]["wall_ns"] < found.rows[1]["wall_ns"]
    assert found.absent == ""
    assert paths == ["/metrics"] * 2


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ((404, "Not Found"), "the server answered 404"),
        ((200, "http_requests_total 4\n"), "the page has no metric of vLLM or Triton"),
        (
            (200, "nv_inference_count 4x\n"),
            "ValueError: could not convert string to float: '4x'",
        ),
    ],
)
def test_server_without_metrics_is_queried_once_and_the_reason_kept(
    page: tuple[int, str], reason: str
) -> None:
    with serving([page]) as (server, paths):
        found = looked(server, times=3)
        assert found.absent == f"{server.address}: {reason}"
    assert found.rows == []
    assert len(paths) == 1


def test_a_reading_that_fails_later_leaves_out_its_row() -> None:
    with serving([(200, VLLM), (503, ""), (200, VLLM)]) as (server, _):
        found = looked(server, times=3)
    assert len(found.rows) == 2
    assert found.absent == ""


def test_missing_server_is_reported_as_the_reason() -> None:
    with serving([(200, VLLM)]) as (server, _):
        pass
    found = looked(server)
    assert found.absent.startswith(f"{server.address}: Connection refused")


def test_grpc_address_has_no_metrics_page() -> None:
    assert looked().absent == NO_PAGE


@pytest.mark.parametrize(
    ("url", "page"), [("", "/metrics"), ("/v1", "/metrics"), ("/a", "/a/metrics")]
)
def test_the_page_is_beside_a_version_in_the_url(url: str, page: str) -> None:
    """Bug: the harness requested /v1/metrics, and the server's metrics were missing without a message."""
    urls = [f"http://127.0.0.1:8000{url}"]
    config = RunConfig.of(scenario="offline", backend="openai", url=urls)
    assert [server.address.prefix for server in metrics_pages(config)] == [page]
