"""Faults of a Ray cluster that is lost with them: its head dies, or the network between its machines."""

import os
import signal
from pathlib import Path

import pytest

from harness.cli.main import main
from tests.cluster.ray.raylets import WAITS, raylet_on, raylets
from tests.cluster.ray.test_ray_nodes import QUERIES, SLOW_BATCH, has_ended, on
from tests.cluster.test_node_loss import OFFLINE, when_running
from tests.cluster.test_node_runs import ran
from tests.stand_ins.network_namespace import HERE, THERE, machine

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, WAITS]


def test_the_death_of_the_head_costs_no_answer_and_no_node_is_left(tmp_path: Path) -> None:
    out = tmp_path / "run"
    hosts: list[int] = []
    with raylets(2, RAY_gcs_rpc_server_reconnect_timeout_s="5") as cluster:

        def fault() -> None:
            hosts.extend(cluster.wait_for_nodes(2).values())
            for pid in cluster.head:
                os.kill(pid, signal.SIGKILL)

        thread = when_running(out, fault)
        _, result = ran(out, *OFFLINE, *SLOW_BATCH, *on(cluster))
        thread.join()
        assert has_ended(hosts, 90)
    assert len(hosts) == 2
    assert result["queries"]["samples_failed"] == 0
    assert main(["check", str(out)]) in (0, 4)


def test_a_node_that_is_cut_off_is_lost_and_ends_when_it_is_found_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    hosts: list[int] = []
    found_late = {
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "1000",
        "RAY_health_check_failure_threshold": "3",
    }
    with (
        machine() as other,
        raylets(1, HERE, **found_late) as cluster,
        raylet_on(other, cluster.address) as far,
    ):
        cluster.pids.append(far.pid)
        while THERE not in capsys.readouterr().out:
            assert main(["list", "--nodes", cluster.nodes]) == 0

        def fault() -> None:
            hosts.append(cluster.wait_for_nodes(2)[far.pid])
            other.pull_cable()

        thread = when_running(out, fault)
        status, result = ran(out, *OFFLINE, *SLOW_BATCH, *on(cluster))
        thread.join()
        assert status == 4
        (text,) = [r["text"] for r in result["reasons"] if r["code"] == "node-lost"]
        assert f"{THERE}:" in text
        assert "no answer for 2.00 s" in text
        near, lost = sorted(result["nodes"], key=lambda node: node["lost_samples"])
        assert (near["failed"], near["samples"] + lost["samples"]) == (0, QUERIES)
        assert main(["check", str(out)]) == 0
        other.plug_cable()
        assert has_ended(hosts, 90)
