"""Faults that destroy a Ray cluster: in its head, on its disk, or in the network between its machines."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.core.units import show_ns
from tests.builders.serving import ROOT
from tests.cluster.ray.raylets import (
    QUERIES,
    SLOW_BATCH,
    WAITS,
    has_ended,
    on,
    parent_of,
    raylet_on,
    raylets,
)
from tests.cluster.runs import OFFLINE, is_whole, ran, when_running
from tests.stand_ins.network_namespace import HERE, THERE, machine
from tests.stand_ins.small_disk import fill, small_disk

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, WAITS]


def test_the_death_of_the_head_loses_no_answer_and_leaves_no_node(tmp_path: Path) -> None:
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


def test_a_node_that_is_cut_off_is_lost_and_ends_when_reconnected(
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


def test_a_full_disk_of_the_nodes_keeps_the_measurements(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fleet"
    with (
        # The path is short, because Ray's sockets allow only short paths.
        tempfile.TemporaryDirectory() as short_path,
        small_disk(Path(short_path, "small"), "20m") as small,
        raylets(1, TMPDIR=str(small)) as cluster,
    ):
        del os.environ["TMPDIR"]  # only the nodes may use the small disk
        words = [*("on", cluster.nodes, "--node-count", "1", "--out", str(out)), "--", "run"]
        load = ["--scenario", "server", "--backend", "null", "--target-qps", "2000"]
        short = ["--mode", "performance", "--duration", "10s", "--no-metrics", "--no-report"]
        with subprocess.Popen(
            [sys.executable, "-m", "harness", *words, *load, *short],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            log = "mlperf-harness-*/results/run.partial/performance/run_1/mlperf_log_detail.txt"
            end_s = time.monotonic() + 60
            while not any(small.glob(log)) and time.monotonic() < end_s:
                time.sleep(0.05)
            time.sleep(2)
            fill(small)
            printed, said = process.communicate(timeout=120)
        assert process.returncode == 4, said
        assert "No space left on device" in said
        assert "p99 " in said
        (run,) = out.glob("*/run.partial")
        assert f"results     {run}" in said
        assert str(run) in printed
        assert [*run.rglob("mlperf_log_detail.txt")]

        capfd.readouterr()
        full = tmp_path / "full"
        assert main([*words[:-3], str(full), "--", "run", *load, *short]) == 3
        assert main([*load, *short, "--out", str(tmp_path / "run"), *on(cluster, 1)]) == 3
        said = capfd.readouterr().err
        assert said.count(f"{cluster.nodes} fails (") == 2
        assert "Traceback" not in said
    assert not [*tmp_path.glob("run*")]


def test_batches_travel_in_ray_calls_when_nothing_else_gets_through(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The node listens on the loopback interface of a different machine, which no socket on this machine can reach."""
    out = tmp_path / "run"
    hosts: list[int] = []
    with machine() as other, raylets(0, HERE) as cluster, raylet_on(other, cluster.address) as far:
        cluster.pids.append(far.pid)
        while THERE not in capsys.readouterr().out:
            assert main(["list", "--nodes", cluster.nodes]) == 0
        thread = when_running(out, lambda: hosts.extend(cluster.wait_for_nodes(1).values()))
        words = ("--scenario", "offline", "--queries", "3000", *on(cluster, 1))
        _, result = ran(out, *words, "--transport", "actor")
        thread.join()
        is_whole(out, result)
        assert result["accuracy"]["value"] == pytest.approx(99.2)
        (doubt,) = [d["text"] for d in result["doubts"] if d["code"] == "ray-calls"]
        (node,) = result["nodes"]
        assert node["network_p50_ns"] > 100_000
        assert show_ns(node["network_p50_ns"]) in doubt
        assert not node["no_journal"]
        assert main(["check", str(out)]) == 0
        assert has_ended(hosts)

        hosts.clear()
        lost = tmp_path / "lost"

        def fault() -> None:
            hosts.extend(cluster.wait_for_nodes(1).values())
            os.kill(parent_of(hosts[0]), signal.SIGKILL)

        thread = when_running(lost, fault)
        status, result = ran(lost, *OFFLINE, *SLOW_BATCH, *on(cluster, 1), "--transport", "actor")
        thread.join()
        assert status == 4
        assert "node-lost" in [reason["code"] for reason in result["reasons"]]
        assert main(["check", str(lost)]) == 0
        assert has_ended(hosts, 30)
