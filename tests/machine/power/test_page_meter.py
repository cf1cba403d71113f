"""Power on a Prometheus metrics page is read in joules or watts; a page without power is refused."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from harness.core.shown import private
from harness.errors import ConfigError
from harness.machine.power.meters import page
from harness.machine.power.meters.page import PageMeter

DCGM = """# TYPE DCGM_FI_DEV_POWER_USAGE gauge
DCGM_FI_DEV_POWER_USAGE{gpu="0",modelName="H100",Hostname="secret"} 98.2
DCGM_FI_DEV_POWER_USAGE{gpu="1",modelName="H100",Hostname="secret"} 91.5
# TYPE DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION counter
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="0",modelName="H100",Hostname="secret"} 5000
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION{gpu="1",modelName="H100",Hostname="secret"} 7000
"""
NODE = """node_rapl_package_joules_total{index="0",path="/sys"} 12.5
rail_power{rail="gpu"} 1500
rail_power{rail="fan"} 200
"""


class _Pages(HTTPServer):
    text, status = DCGM, 200


class _Handler(BaseHTTPRequestHandler):
    server: _Pages
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        assert self.path == "/metrics"
        body = self.server.text.encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def pages(text: str) -> Iterator[tuple[str, _Pages]]:
    with _Pages(("127.0.0.1", 0), _Handler) as server:
        server.text = text
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", server
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "EVERY_S", 0.0)


def test_the_energy_counter_of_each_gpu_is_read_in_joules() -> None:
    with pages(DCGM) as (url, server), PageMeter(url) as meter:
        sources = meter.sources()
        assert [source.unit for source in sources] == ["J", "J"]
        assert [source.domain for source in sources] == [
            "gpu 0, modelName H100",
            "gpu 1, modelName H100",
        ]
        assert len({source.name for source in sources}) == 2
        assert meter.read() == [5.0, 7.0]
        server.text = DCGM.replace(" 5000", " 6500")
        assert meter.read() == [6.5, 7.0]


def test_a_power_is_read_without_a_counter() -> None:
    text = DCGM.partition("# TYPE DCGM_FI_DEV_TOTAL")[0]
    with pages(text) as (url, _), PageMeter(f"{url}/metrics") as meter:
        assert {source.unit for source in meter.sources()} == {"W"}
        assert meter.read() == [98.2, 91.5]


def test_a_named_series_is_read_in_its_unit() -> None:
    with pages(NODE) as (url, _):
        with PageMeter(f'{url} rail_power{{rail="gpu"}} mW') as meter:
            assert meter.read() == [1.5]
        with PageMeter(url) as meter:
            assert [source.name for source in meter.sources()] == [
                "page:node_rapl_package_joules_total"
            ]
            assert meter.read() == [12.5]


def test_a_sample_that_disappears_does_not_stop_the_others() -> None:
    with pages(DCGM) as (url, server), PageMeter(url) as meter:
        server.text = "\n".join(line for line in DCGM.splitlines() if 'gpu="0"' not in line)
        lost, kept = meter.read()
        assert isinstance(lost, ValueError)
        assert kept == 7.0


@pytest.mark.parametrize(
    ("argument", "said"),
    [
        ("", "name the page"),
        ("grpc://h:1", "is not the address of a metrics page: write it with http://"),
        ("{} my_power", "is not a series followed by one of"),
        ("{} my_power Wh", "is not a series followed by one of"),
        ("{} my-power W", "is not a series"),
        ("{} my_power W", "the page has no series my_power"),
    ],
)
def test_a_wrong_argument_is_refused(argument: str, said: str) -> None:
    with (
        pages(DCGM) as (url, _),
        pytest.raises(ConfigError, match=said) as refused,
        PageMeter(argument.format(url)),
    ):
        pass
    assert "\n" not in str(refused.value)


def test_a_page_without_power_or_an_answer_is_refused() -> None:
    with pages("up 1\n") as (url, server):
        with pytest.raises(ConfigError, match="no known power series"), PageMeter(url):
            pass
        server.status = 404
        with pytest.raises(ConfigError, match="answered 404"), PageMeter(url):
            pass
    with pytest.raises(ConfigError, match="refused"), PageMeter(url):
        pass


def test_the_page_of_a_meter_is_private() -> None:
    assert "10.0.0.2" not in private.meter("page=http://10.0.0.2:9400/metrics")
