"""Nodes behind a network that delays, holds and cuts connections: the messages of the run, and what the run leaves
behind.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.cli.main import main
from tests.builders.serving import serving
from tests.cluster.hosts import hosts
from tests.cluster.runs import OFFLINE, SLOW_BATCH, codes, is_whole, ran, when_running
from tests.stand_ins.network_namespace import THERE, machine
from tests.stand_ins.relay import Relay, relay

pytestmark = pytest.mark.slow

ONE = (*SLOW_BATCH, "--max-batch", "4")
DELAY_S = 0.02


def named(*ports: int) -> tuple[str, str]:
    return "--nodes", ",".join(f"127.0.0.1:{port}" for port in ports)


def test_network_delay_is_not_counted_as_node_time(tmp_path: Path) -> None:
    with hosts(ONE, ONE) as (near, far), relay(far.port, DELAY_S) as through:
        out = tmp_path / "run"
        _, result = ran(out, *OFFLINE, *named(near.port, through.port), "--queries", "400")
    is_whole(out, result)
    first, second = result["nodes"]
    assert second["network_p50_ns"] >= 2 * DELAY_S * 1e9 > first["network_p50_ns"]
    # The node's own clock measures `infer`.
    assert second["infer_p50_ns"] < 1.2 * 50e6 + DELAY_S * 1e9
    assert second["clock_error_ns"] >= DELAY_S * 1e9 > first["clock_error_ns"]
    # Both nodes run on one machine, so their clocks show the same time.
    for node in result["nodes"]:
        assert abs(node["clock_offset_ns"]) <= node["clock_error_ns"]
        assert node["clock_step_ns"] == 0
    assert main(["check", str(out)]) == 0


@pytest.mark.parametrize(
    ("act", "how"),
    [(Relay.cut, "closed the connection|reset by peer"), (Relay.freeze, "no answer for 2.00 s")],
    ids=["cut", "freeze"],
)
def test_a_node_that_cannot_be_reached_is_lost_and_the_run_continues(
    tmp_path: Path, act: Callable[[Relay], None], how: str
) -> None:
    out = tmp_path / "run"
    with hosts(ONE, ONE) as (near, far), relay(far.port) as through:
        actor = when_running(out, lambda: act(through))
        words = (*OFFLINE, *named(near.port, through.port), "--queries", "600")
        status, result = ran(out, *words, "--request-timeout", "2s")
        actor.join()
        assert status == 4
        assert "node-lost" in codes(result)
        (text,) = [r["text"] for r in result["reasons"] if r["code"] == "node-lost"]
        assert any(word in text for word in how.split("|"))
        there, lost = result["nodes"]
        assert there["samples"] + lost["samples"] == 600
        assert there["failed"] == 0
        assert lost["failed"] == lost["lost_samples"] == result["queries"]["samples_failed"] > 0
        assert (lost["host"], lost["no_host"]) == (None, "the node was lost")
        assert main(["check", str(out)]) == 0
        # The node survived the loss of its connection, and accepts the next run.
        again = tmp_path / "again"
        _, result = ran(again, *OFFLINE, *named(far.port), "--queries", "100")
        is_whole(again, result)


def test_a_machine_whose_cable_is_pulled_is_lost(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with (
        machine() as other,
        serving("digits", "--node", *ONE, under=other.under, host=THERE) as far,
        hosts(ONE) as (near,),
    ):
        puller = when_running(out, other.pull_cable)
        words = (*OFFLINE, "--nodes", f"127.0.0.1:{near.port},{THERE}:{far.port}")
        options = ("--queries", "400", "--request-timeout", "2s", "--meter", "estimate")
        status, result = ran(out, *words, *options)
        puller.join()
    assert status == 4
    (text,) = [r["text"] for r in result["reasons"] if r["code"] == "node-lost"]
    assert f"{THERE}:{far.port} was lost with " in text
    assert "(no answer for 2.00 s)" in text
    there, lost = result["nodes"]
    assert (there["failed"], there["samples"] + lost["samples"]) == (0, 400)
    assert lost["failed"] == lost["lost_samples"] > 0
    assert [one["source"] for one in result["power"]["missing"]] == [f"http://{THERE}:{far.port}"]
