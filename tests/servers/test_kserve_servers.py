"""The remote backend kserve gets the same answers from Triton, MLServer and the KServe SDK as from this process."""

import http.client
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from harness.backends.kserve import KserveRemote
from harness.backends.ort import OrtBackend
from harness.cli.main import main
from harness.core.config.address import parse_address
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model
from harness.remote import Exchange, Refused, Reply, Request
from harness.types import BackendSetup, Batch, DatasetSetup
from harness.wire.connections import Server
from harness.wire.remote_backend import remote_backend
from tests.servers.real_servers import Addresses

pytestmark = pytest.mark.slow

MODEL = load_model("digits")
SERVERS = ("triton", "mlserver", "kserve_sdk")


@contextmanager
def exchange(url: str) -> Iterator[Exchange]:
    """Yields a connection made with the standard library."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=30)

    def ask(request: Request) -> Reply:
        body = b"".join(memoryview(part).tobytes() for part in request.body)
        connection.request(request.method, request.path, body, dict(request.headers))
        with connection.getresponse() as found:
            lines = [f"HTTP/1.1 {found.status} {found.reason}"]
            lines += [f"{name}: {value}" for name, value in found.getheaders()]
            head = "\r\n".join([*lines, "", ""]).encode("latin-1")
            return Reply(found.status, head, memoryview(found.read()))

    with closing(connection):
        yield ask


@pytest.fixture(params=SERVERS)
def server(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def asked(server: str, request: pytest.FixtureRequest) -> Iterator[Exchange]:
    with exchange(request.getfixturevalue(f"{server}_url")) as ask:
        yield ask


@pytest.fixture(scope="module")
def digits() -> DigitsDataset:
    dataset = DigitsDataset(DatasetSetup(inputs=MODEL.inputs))
    dataset.load(range(500))
    return dataset


@pytest.fixture(scope="module")
def logits(digits: DigitsDataset) -> Any:
    """Returns (500, 10): the outputs of ONNX Runtime in this process."""
    path = MODEL.path(("onnx",))
    with OrtBackend(BackendSetup(model=path, model_name="digits", inputs=MODEL.inputs)) as backend:
        return np.asarray(backend.infer(digits.batch(range(500))))


def setup(**options: str) -> BackendSetup:
    return BackendSetup(
        model=None, model_name="digits", inputs=MODEL.inputs, max_batch=64, options=options
    )


ENCODINGS: Mapping[str, tuple[str, str]] = {
    "triton": ("binary", "binary"),
    "mlserver": ("json", "json"),
    "kserve_sdk": ("binary", "json"),
}


@pytest.mark.parametrize("options", [{}, {"encoding": "json"}])
def test_answers_are_those_of_this_process(
    server: str, asked: Exchange, options: Mapping[str, str], digits: DigitsDataset, logits: Any
) -> None:
    remote = KserveRemote(setup(**options))
    remote.open(asked)
    described = remote.describe()
    found = (described["encoding"], described["reply_encoding"])
    assert found == (("json", "json") if options else ENCODINGS[server])
    for size in (1, 1, 64, 7):
        indices = range(size * 3, size * 4)
        batch = digits.batch(indices)
        answer = np.asarray(remote.answer(asked(remote.request(batch)), size))
        assert answer.dtype == np.float32
        assert np.abs(answer - logits[indices]).max() < 1e-5
        assert answer.argmax(axis=1).tolist() == logits[indices].argmax(axis=1).tolist()


def test_a_model_that_the_server_lacks_is_a_mistake_of_the_user(asked: Exchange) -> None:
    with pytest.raises(ConfigError, match=r"^the server has no model 'nope': it has digits; see "):
        KserveRemote(setup(served="nope")).open(asked)
    with pytest.raises(ConfigError, match=r"^the server has no version '7' of model 'digits': it "):
        KserveRemote(setup(version="7")).open(asked)


def test_triton_s_version_can_be_chosen(triton_url: str) -> None:
    remote = KserveRemote(setup(version="1"))
    with exchange(triton_url) as ask:
        remote.open(ask)
    assert remote.describe()["model_version"] == "1"


def test_a_request_of_another_shape_is_refused_in_the_server_s_words(triton_url: str) -> None:
    remote = KserveRemote(setup())
    with exchange(triton_url) as ask:
        remote.open(ask)
        reply = ask(remote.request(Batch(1, {"image": np.zeros((1, 1, 4, 4), np.float32)})))
    with pytest.raises(Refused, match="unexpected shape for input 'image'"):
        remote.answer(reply, 1)


def test_mlserver_takes_no_binary_tensors(mlserver_url: str) -> None:
    remote = KserveRemote(setup(encoding="binary"))
    with (
        exchange(mlserver_url) as ask,
        pytest.raises(ConfigError, match="binary: the server answered 422: "),
    ):
        remote.open(ask)


@pytest.fixture(params=["triton", "mlserver"])
def addresses(request: pytest.FixtureRequest) -> Addresses:
    found: Addresses = request.getfixturevalue(request.param)
    return found


def test_answers_over_grpc_equal_the_answers_in_this_process(
    addresses: Addresses, digits: DigitsDataset, logits: Any
) -> None:
    remote = KserveRemote(replace(setup(), transport="grpc"))
    with remote_backend(remote, Server(address=parse_address(addresses.grpc_url)), 30) as backend:
        assert backend.describe()["reply_encoding"] == "binary"
        for size in (1, 1, 64, 7):
            indices = range(size * 3, size * 4)
            answer = np.asarray(backend.infer(digits.batch(indices)))
            assert answer.dtype == np.float32
            assert np.abs(answer - logits[indices]).max() < 1e-5
        with pytest.raises(ConfigError, match=r"INVALID_ARGUMENT|Got invalid dimensions"):
            backend.infer(Batch(1, {"image": np.zeros((1, 1, 4, 4), np.float32)}))


@pytest.mark.parametrize(
    "scenario",
    [
        ("--scenario", "single-stream"),
        ("--scenario", "multi-stream"),
        ("--scenario", "offline"),
        ("--scenario", "server", "--target-qps", "50", "--slo", "p99=2s"),
    ],
    ids=lambda words: words[1],
)
def test_every_scenario_over_grpc_is_valid_and_as_exact(
    addresses: Addresses, scenario: tuple[str, ...], tmp_path: Path
) -> None:
    words = ("--backend", "kserve", "--url", addresses.grpc_url, "--model", "digits")
    more = ("--mode", "both", "--duration", "3s", "--no-metrics", "--out", str(tmp_path / "run"))
    assert main([*scenario, *words, *more]) == 0
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["verdict"] == "VALID"
    assert round(result["accuracy"]["value"], 2) == 99.20
    assert "notice" not in result["stages_ns"]
    assert result["stages_ns"]["remote"]["p50"] > 0
    assert result["client"]["ceiling_per_s"] > 0
    told = result["client"]["server_times"]
    assert (told is not None) == (result["backend_description"]["framework"] == "triton 2.51.0")


def test_triton_s_own_metrics_are_on_the_time_axis_of_the_run(
    triton: Addresses, tmp_path: Path
) -> None:
    words = (
        # At a fixed rate, the run takes the same time however fast Triton is.
        *("--scenario", "server", "--target-qps", "200"),
        *("--backend", "kserve", "--url", triton.url, "--model", "digits"),
    )
    more = ("--duration", "6s", "--max-batch", "4", "--no-metrics", "--out", str(tmp_path / "run"))
    assert main([*words, *more, "--server-metrics", triton.metrics]) in (0, 4)
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    told = result["servers"]
    assert (told["absent"], told["kv_cache_share_max"]) == ("", None)
    assert told["rows"] >= 2
    assert told["inferences"] > 0
    assert 1 <= told["batch_mean"] <= 64
    assert "requests in server" in (tmp_path / "run" / "report.html").read_text()
    assert main(["check", str(tmp_path / "run")]) == 0
