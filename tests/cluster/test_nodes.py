"""Messages about --nodes before the run contacts any node."""

import socket
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import __version__
from harness.cli.main import main
from harness.cluster import node_list
from harness.cluster.nodes import of_node, shares
from harness.core.config.parse import parse_nodes
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.machine.cores import Cores
from harness.models.opened.node import code_sha256
from harness.run.measured.nodes import links
from harness.run.measured.nodes.links import NodeLinks
from harness.run.measured.nodes.opened import open_nodes
from tests.builders.refusals import Said
from tests.models.test_node_facts import FACTS


@given(st.integers(1, 12), st.integers(1, 12), st.integers(1, 2))
def test_nodes_of_one_machine_share_its_cores_evenly(cores: int, count: int, siblings: int) -> None:
    groups = tuple(tuple(range(n * siblings, (n + 1) * siblings)) for n in range(cores))
    own = shares(Cores(groups), count)
    assert len(own) == count
    assert {cpu for each in own for cpu in each} >= (
        {cpu for group in groups for cpu in group} if count >= cores else set()
    )
    sizes = [len(each) for each in own]
    assert min(sizes) >= siblings
    assert max(sizes) - min(sizes) <= siblings
    if count <= cores:
        assert sum(sizes) == cores * siblings  # each core belongs to exactly one node
        assert len({cpu for each in own for cpu in each}) == cores * siblings


@pytest.mark.parametrize("text", ["local:1", "local:12", "a:1", "10.0.0.1:7000,10.0.0.2:7000"])
def test_a_valid_list_of_nodes_is_kept_as_written(text: str) -> None:
    assert parse_nodes(f" {text}") == text


def test_a_ray_cluster_is_named_by_its_head() -> None:
    assert parse_nodes("ray://10.0.0.1") == "ray://10.0.0.1:10001"
    assert parse_nodes("ray://[::1]:7") == "ray://[::1]:7"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ray://", "not an address"),
        ("ray://a b", "not an address"),
        ("local:0", "not local:N"),
        ("local:", "not local:N"),
        ("local:9999", "not local:N"),
        ("a:1,a:1", "twice"),
        ("a", "not an address"),
        ("a:0", "not the port"),
        ("", "not an address"),
    ],
)
def test_an_invalid_list_of_nodes_is_refused(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_nodes(text)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"url": ["http://127.0.0.1:1"]}, "--nodes and --url both set where the answers come from"),
        (
            {"nodes": "a:1", "instances": 2, "threads": 1},
            "--instances and --threads can only be set when",
        ),
        ({"nodes": "a:1", "device": "cuda"}, "--device can only be set when `serve --node` starts"),
        ({"connections": 3}, "--connections can only be used with --url"),
        ({"dispatch": "deadline", "slo": "p99=1s"}, "--dispatch cannot be set with --nodes"),
        ({"qdl": True}, "--qdl"),
        ({"nodes": "ray://a"}, "add --node-count N"),
        ({"node_count": 2}, "--node-count applies to --nodes ray://HEAD"),
        ({"transport": "actor"}, "--transport applies to --nodes ray://HEAD"),
        ({"backend": "kserve"}, "--backend kserve needs servers: drop --nodes"),
        ({"models": "set.yaml"}, "--models does not apply to nodes, which have one model each"),
    ],
)
def test_options_that_contradict_nodes(options: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        RunConfig.of(**{"scenario": "server", "nodes": "local:2", **options})


def test_inputs_on_wire_requires_nodes() -> None:
    with pytest.raises(ConfigError, match="--inputs-on-wire can only be used with --nodes"):
        RunConfig.of(scenario="server", inputs_on_wire=True)


def test_a_node_gets_the_options_that_apply_to_it() -> None:
    config = RunConfig.of(
        scenario="server", nodes="local:2", threads=1, instances=2, request_timeout="3s", seed=4
    )
    node = of_node(config)
    assert (node.nodes, node.request_timeout_ns) == (None, None)
    assert (node.instances, node.threads, node.seed) == (2, 1, 4)


def test_a_stream_on_several_nodes_is_refused(refuses: Said) -> None:
    assert "single-stream sends one query at a time, but 2 nodes are named" in refuses(
        "--scenario", "single-stream", "--nodes", "local:2"
    )


def test_a_search_refuses_nodes(refuses: Said) -> None:
    assert "--nodes applies to single runs only" in refuses(
        "peak", "--scenario", "server", "--slo", "p99=1s", "--nodes", "local:2"
    )


def test_all_unreachable_nodes_are_named_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the nodes were contacted only after the run's folder had been made and its process had printed "loading the
    model".
    """
    # A run calls `resolve` first, so this test fails if the run begins before the nodes reply.
    monkeypatch.delattr("harness.run.supervisor.preflight.resolve")
    words = ["--scenario", "offline", "--nodes", "127.0.0.1:1,127.0.0.1:2", "--no-metrics"]
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err
    for name in ("127.0.0.1:1", "127.0.0.1:2"):
        assert f"--nodes: {name} does not answer (Connection refused): check" in errors
    assert not (tmp_path / "run").exists()


def test_a_node_that_does_not_reply_is_reported_with_the_ask_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Bug: with --request-timeout 2s the message was "no reply within 10 s (--request-timeout)"."""
    monkeypatch.setattr(links, "ASK_LIMIT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        name = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigError) as caught:
            [*node_list.lines(name)]
    assert f"{name} does not answer (no reply within 0.05 s): check that `serve" in str(
        caught.value
    )


def test_nodes_of_another_backend_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: a run whose nodes were `serve --backend null --node` was a VALID run of `ort`."""
    facts = replace(FACTS, backend="null", version=__version__, code=code_sha256())
    monkeypatch.setattr(NodeLinks, "facts", lambda _links: {"10.0.0.1:7000": facts})
    asked = {"scenario": "offline", "nodes": "10.0.0.1:7000"}
    config = replace(RunConfig.of(**asked), node_urls=("http://10.0.0.1:7000",))
    with ExitStack() as stack, pytest.raises(ConfigError) as caught:
        open_nodes(config, stack)
    assert str(caught.value) == (
        "node-differs: 10.0.0.1:7000: the backend is null, but this run's is ort: pass --backend null"
    )
    with ExitStack() as stack:
        assert open_nodes(replace(config, backend="null"), stack).first == facts


@pytest.mark.parametrize(
    ("nodes", "why"), [("127.0.0.1:1", "is not a Ray cluster"), ("ray://h:x", "ray://h:x")]
)
def test_on_checks_the_address_before_missing_options(
    nodes: str, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the harness first demanded --node-count and --out, and only then refused the address."""
    assert main(["on", nodes, "--", "peak"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("harness: on: ")
    assert why.removeprefix("ray://") in line


def test_the_list_of_nodes_names_the_framework_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bug: the harness read a key that no backend has."""
    monkeypatch.setattr(NodeLinks, "facts", lambda _links: {"10.0.0.1:7000": FACTS})
    heads, row = node_list.lines("10.0.0.1:7000")
    assert "framework" in heads
    assert "ONNX Runtime 1" in row
