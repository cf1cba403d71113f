"""LoadGen gets the names of the servers after one round trip to each server, and no exception is raised."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import pytest

from harness.backends.http_raw import HttpRawRemote
from harness.backends.kserve import KserveRemote
from harness.core.config.run_config import RunConfig
from harness.datasets.digits import DigitsDataset
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model
from harness.models.opened.remote import servers_of
from harness.models.steps.postprocess import postprocessor
from harness.run.measured.answerer import Answerer
from harness.run.measured.client.nodes import Nodes
from harness.run.measured.client.session import Session
from harness.serve.kserve import OpenInference
from harness.serve.loop import Later
from harness.serve.requests import Request
from harness.types import BackendSetup, DatasetSetup
from harness.wire.flights import Flights
from harness.wire.remote_backend import remote_backend
from tests.serve.test_kserve import digits
from tests.serve.test_loop import served

KSERVE = KserveRemote(BackendSetup(model=None, model_name="digits"))


class Server:
    """A `serve` process that can be renamed, and counts its requests."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked = 0

    def handle(self, request: Request, arrived_ns: int) -> Sequence[bytes | memoryview] | Later:
        self.asked += 1
        return OpenInference(digits(), self.name).handle(request, arrived_ns)


@contextmanager
def serving(*names: str) -> Iterator[tuple[list[Server], list[str], list[Callable[[], None]]]]:
    """Yields (servers, URLs, functions that end each server)."""
    servers = [Server(name) for name in names]
    with ExitStack() as stack:
        loops = [stack.enter_context(served(server.handle)) for server in servers]
        urls = [f"http://127.0.0.1:{loop.address[1]}" for loop in loops]
        yield servers, urls, [loop.stop for loop in loops]


def config(urls: Sequence[str]) -> RunConfig:
    return RunConfig.of(scenario="offline", backend="kserve", url=list(urls), qdl=True)


def test_a_name_takes_a_round_trip_to_every_server() -> None:
    with serving("node-1", "node 2") as (servers, urls, _):
        nodes = Nodes(config(urls), KSERVE)
        assert [node.name for node in nodes.nodes] == ["node-1", "node 2"]
        assert all(node.round_trip_ns > 0 for node in nodes.nodes)
        for asked in (2, 3):
            assert nodes.sut_name() == ("Network SUT: node-1 (same machine), node 2 (same machine)")
            assert [server.asked for server in servers] == [asked, asked]
        nodes.close()


def test_renamed_or_ended_server_is_not_a_network_sut() -> None:
    with serving("a", "b") as (servers, urls, ends):
        nodes = Nodes(config(urls), KSERVE)
        servers[1].name = 'b"'
        assert nodes.sut_name() == nodes.given == f"another name from {urls[1]}: b?"
        ends[0]()
        while (name := nodes.sut_name()).startswith("another"):
            pass  # the loop waits until the server's port is closed
        assert name.startswith(f"no name from {urls[0]}: ")
        nodes.close()


@pytest.mark.parametrize("qdl", [False, True])
def test_a_qdl_keeps_no_query(qdl: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A QDL (query dispatch library) encodes each request only when its query is due, not when the sample is loaded."""
    prepared: list[Sequence[int]] = []
    monkeypatch.setattr(Flights, "prepare", lambda _self, loaded: prepared.append(loaded))
    with serving("a") as (_, urls, _ends):
        asked = RunConfig.of(scenario="offline", backend="kserve", url=urls, qdl=qdl)
        backend = remote_backend(KSERVE, servers_of(asked)[0], 5.0)
        data = DigitsDataset(DatasetSetup(inputs=load_model("digits").inputs))
        answerer = Answerer(backend, data, postprocessor((), None))
        session = Session(asked, answerer, 1, 1, 0)
        session.prepare([1, 2])
        session.close()
    assert prepared == ([] if qdl else [[1, 2]])


@pytest.mark.parametrize(
    ("names", "told"),
    [
        (("a", "a"), "are both called 'a': give each server a different name"),
        (("a", ""), "reports no name: give it a name"),
        (('say "a"',), """reports the name 'say "a"'"""),
        (("a, b",), "reports the name 'a, b'"),
        (("a (same machine)",), "reports the name"),
    ],
)
def test_ambiguous_name_of_a_server_is_refused(names: tuple[str, ...], told: str) -> None:
    with serving(*names) as (_, urls, _), pytest.raises(ConfigError) as raised:
        Nodes(config(urls), KSERVE)
    (line,) = str(raised.value).splitlines()
    assert told in line


def test_a_protocol_without_names_is_refused() -> None:
    remote = HttpRawRemote(BackendSetup(model=None, model_name="digits"))
    with pytest.raises(ConfigError, match=r"no request for the server's name: use kserve"):
        Nodes(config(["http://127.0.0.1:1"]), remote)
