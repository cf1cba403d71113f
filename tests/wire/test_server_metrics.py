"""Readings of the servers' metrics pages: the rows of several servers, and the reasons for missing rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import HTTPServer

import pytest

from harness.core.config.address import parse_address
from harness.core.config.run_config import RunConfig
from harness.models.opened.remote import metrics_pages
from harness.wire.connections import Server
from harness.wire.server_metrics import NO_PAGE, ServerMetrics
from harness.wire.server_series import Series
from tests.stand_ins.servers.quiet import QuietHandler, in_thread
from tests.wire.test_server_series import PAGES

VLLM = (PAGES / "vllm.txt").read_text(encoding="utf-8")


@contextmanager
def serving(pages: Sequence[tuple[int, str]]) -> Iterator[tuple[Server, list[str]]]:
    """Yields a server that sends one page after another and then repeats the last page, and the list of requested
    paths.
    """
    left, paths = [*pages], []

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            paths.append(self.path)
            status, text = left.pop(0) if len(left) > 1 else left[0]
            self.reply(text.encode(), status)

    with in_thread(HTTPServer(("127.0.0.1", 0), Handler)) as address:
        yield Server(address=parse_address(f"{address}/metrics")), paths


def looked(*servers: Server, times: int = 2, wanted: Sequence[Series] = ()) -> ServerMetrics:
    found = ServerMetrics(servers, wanted)
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


def test_a_named_series_of_an_unknown_server_is_read() -> None:
    page = 'queue_size{model="a"} 3\nqueue_size{model="b"} 4\n'
    with serving([(200, page)]) as (server, _):
        found = looked(server, wanted=[Series.parse('queue_size{model="b"}')])
    assert [row['queue_size{model="b"}'] for row in found.rows] == [4.0, 4.0]
    assert found.absent == ""


@pytest.mark.parametrize(
    ("page", "reason"),
    [
        ((404, "Not Found"), "the server answered 404"),
        (
            (200, "http_requests_total 4\n"),
            "the page has no series of a known server: name its series with --server-metric",
        ),
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
    """Bug: the harness requested /v1/metrics, so the server's metrics were silently missing."""
    urls = [f"http://127.0.0.1:8000{url}"]
    config = RunConfig.of(scenario="offline", backend="openai", url=urls)
    assert [server.address.prefix for server in metrics_pages(config)] == [page]
