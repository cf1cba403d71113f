"""Messages before and while a run reserves nodes of a Ray cluster, with a stand-in for Ray."""

import json
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.cluster.ray import client
from harness.errors import ConfigError, PluginUnavailable


def node(address: str, is_alive: bool = True, **resources: float) -> dict[str, Any]:
    about = {"NodeID": address, "NodeManagerAddress": address}
    return {**about, "Alive": is_alive, "Resources": resources}


class StandIn:
    """A stand-in for Ray, in which a reference is either the answer or the exception to raise."""

    def __init__(self, *nodes: dict[str, Any]) -> None:
        self._nodes = nodes

    def nodes(self) -> list[dict[str, Any]]:
        return list(self._nodes)

    def wait(self, asked: list[Any], timeout: float) -> tuple[list[Any], list[Any]]:
        done = [one for one in asked if one is not None]
        return done, [one for one in asked if one is None]

    def get(self, one: Any) -> Any:
        if isinstance(one, Exception):
            raise one
        return one


def host(answer: object) -> client.Host:
    remote = SimpleNamespace(remote=lambda _text: answer)
    return client.Host("node-1", SimpleNamespace(serve=remote))


def asked(answer: object, is_gone: Callable[[], bool] = lambda: False) -> Any:
    return client.ask(StandIn(), [host(answer)], "serve", {}, 0.4, is_gone)


def test_an_answer_is_parsed_as_data() -> None:
    assert asked(json.dumps({"addresses": ["a:1"]})) == [{"addresses": ["a:1"]}]


@pytest.mark.parametrize(
    ("answer", "error", "text"),
    [
        (json.dumps({"error": "no such file", "status": 2, "address": "10.0.0.1"}), ConfigError, r"^10\.0\.0\.1: no such file$"),
        (ModuleNotFoundError("No module named 'harness'"), PluginUnavailable, "^node-1: the harness is not installed where Ray runs: install"),
        (RuntimeError("first line\n\nThe node died.\n"), PluginUnavailable, "^node-1: The node died.$"),
        (None, PluginUnavailable, "^the nodes did not answer in 0.4 s$"),
    ],
)  # fmt: skip
def test_an_error_of_a_node_is_raised_in_one_line(
    answer: object, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        asked(answer)


def test_waiting_ends_when_the_run_is_gone() -> None:
    with pytest.raises(client.AskerGone):
        asked(None, is_gone=lambda: True)


def test_too_few_nodes_are_reported_with_the_usable_ones() -> None:
    ray = StandIn(
        node("10.0.0.1", CPU=4.0),
        node("10.0.0.2", CPU=8.0, GPU=1.0),
        node("10.0.0.3", False, CPU=9.0),
    )
    text = r"^2 nodes are requested, but only 1 node of the cluster can be used \(with a GPU\): "
    there = r"10\.0\.0\.2 \(8 CPUs, 1 GPU\); 10\.0\.0\.1 \(4 CPUs\)$"
    with (
        pytest.raises(ConfigError, match=text + there),
        client.placed(ray, 2, is_gone=lambda: False, gpus=True),
    ):
        pass


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "find_spec", lambda _: None)
    with (
        pytest.raises(PluginUnavailable, match=r"^ray:// needs Ray: .*install"),
        client.connected("ray://127.0.0.1:1"),
    ):
        pass


def test_a_head_that_does_not_listen_is_reported_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "find_spec", lambda name: name)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with (
        pytest.raises(
            ConfigError, match=rf"^no Ray cluster answers at ray://127\.0\.0\.1:{port} \("
        ),
        client.connected(f"ray://127.0.0.1:{port}"),
    ):
        pass


def test_a_token_of_the_user_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    assert not client._has_token()
    (tmp_path / "token").write_text("0" * 64)
    assert client._has_token()


def test_a_head_that_accepts_nobody_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "LET_IN_LIMIT_S", 0.1)
    ended = threading.Event()
    ray = SimpleNamespace(init=lambda *_, **__: ended.wait(60))
    with pytest.raises(TimeoutError, match=r"is not ready after 0\.1 s"):
        client._let_in(ray, "ray://127.0.0.1:1")
    ended.set()


def test_an_error_of_ray_about_a_head_is_raised() -> None:
    def init(*_: object, **__: object) -> None:
        raise RuntimeError("another version")

    with pytest.raises(RuntimeError, match="another version"):
        client._let_in(SimpleNamespace(init=init), "ray://127.0.0.1:1")
