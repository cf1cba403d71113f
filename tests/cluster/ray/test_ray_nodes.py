"""Runs on nodes of a Ray cluster: answers, nodes that end, freeze or differ, and what a run leaves behind."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from harness.cli.main import main
from tests.builders.serving import ROOT
from tests.cluster.hosts import SLEEPING, is_running
from tests.cluster.ray.raylets import (
    QUERIES,
    SLOW_BATCH,
    WAITS,
    Raylets,
    freeze,
    has_ended,
    on,
    parent_of,
)
from tests.cluster.runs import OFFLINE, is_whole, ran, when_running

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, WAITS]


@pytest.mark.parametrize(
    "words",
    [
        ("--scenario", "offline", "--queries", "3000"),
        ("--scenario", "server", "--target-qps", "200", "--queries", "400"),
    ],
    ids=" ".join,
)
def test_a_run_on_two_nodes_is_whole_and_leaves_no_process(
    tmp_path: Path, cluster: Raylets, words: tuple[str, ...]
) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "run"
    hosts: list[int] = []
    thread = when_running(out, lambda: hosts.extend(cluster.wait_for_nodes(2).values()))
    _, result = ran(out, *words, *on(cluster))
    thread.join()
    is_whole(out, result)
    assert len(result["nodes"]) == 2
    assert result["accuracy"]["value"] == pytest.approx(99.2)
    assert main(["check", str(out)]) == 0
    # The hosts have ended, because the command waits for the end of their processes.
    assert not any(map(is_running, hosts))


def kill_the_node(_raylet: int, child: int) -> list[int]:
    os.kill(child, signal.SIGKILL)
    return []


def kill_the_actor(_raylet: int, child: int) -> list[int]:
    os.kill(parent_of(child), signal.SIGKILL)
    return []


def freeze_the_machine(raylet: int, child: int) -> list[int]:
    pids = [raylet, parent_of(child), child]
    freeze(pids)
    return pids


@pytest.mark.parametrize(
    ("act", "how"),
    [
        (kill_the_node, "closed the connection|reset by peer"),
        (kill_the_actor, "closed the connection|reset by peer"),
        (freeze_the_machine, "no answer for 2.00 s"),
    ],
)
def test_a_lost_node_is_detected_by_the_connection_and_the_run_continues(
    tmp_path: Path, cluster: Raylets, act: Callable[[int, int], list[int]], how: str
) -> None:
    out = tmp_path / "run"
    frozen: list[int] = []
    hosts: list[int] = []

    def fault() -> None:
        found = cluster.wait_for_nodes(2)
        hosts.extend(found.values())
        frozen.extend(act(*next(iter(found.items()))))

    thread = when_running(out, fault)
    status, result = ran(out, *OFFLINE, *SLOW_BATCH, *on(cluster))
    thread.join()
    freeze(frozen, signal.SIGCONT)
    assert status == 4
    (text,) = [r["text"] for r in result["reasons"] if r["code"] == "node-lost"]
    assert any(word in text for word in how.split("|"))
    (lost,) = [node for node in result["nodes"] if node["lost_samples"]]
    assert result["queries"]["samples_failed"] == lost["lost_samples"] <= 8
    assert sum(node["samples"] for node in result["nodes"]) == QUERIES
    assert main(["check", str(out)]) == 0
    assert has_ended(hosts, 30 if frozen else 5)


def test_the_death_of_a_raylet_loses_no_answer_and_its_node_ends(
    tmp_path: Path, cluster: Raylets
) -> None:
    """No answer is lost, because no batch travels through Ray and a Ray worker outlives its raylet for a while."""
    out = tmp_path / "run"
    hosts: list[int] = []

    def fault() -> None:
        found = cluster.wait_for_nodes(2)
        hosts.extend(found.values())
        os.kill(next(iter(found)), signal.SIGKILL)

    thread = when_running(out, fault)
    _, result = ran(out, *OFFLINE, *SLOW_BATCH, *on(cluster))
    thread.join()
    assert result["queries"]["samples_failed"] == 0
    assert has_ended(hosts, 60)


def test_nodes_with_another_backend_are_refused_and_ended(
    tmp_path: Path, cluster: Raylets, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = SLEEPING.replace(":Sleeping", ":OfItsProcess")
    words = ("--scenario", "offline", "--backend", backend, "--no-metrics", *on(cluster))
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err
    assert "node-differs" in errors
    assert "the precision is" in errors
    assert not any(cluster.hosts(raylet) for raylet in cluster.pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("wait_s", [0.0, 12])
def test_no_node_outlives_the_command(
    tmp_path: Path, cluster: Raylets, number: signal.Signals, wait_s: float
) -> None:
    words = [*OFFLINE, *on(cluster), "--no-metrics", "--duration", "60s"]
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *words, "--out", str(tmp_path / "run")],
        cwd=ROOT,
        stderr=subprocess.DEVNULL,
    ) as process:
        hosts = list(cluster.wait_for_nodes(2).values())
        # One test case ends the command while the nodes start, the other while the nodes answer.
        time.sleep(wait_s)
        process.send_signal(number)
        process.wait(timeout=60)
    actors = [pid for raylet in cluster.pids for pid in cluster.hosts(raylet)]
    assert has_ended(hosts, 30)
    assert has_ended(actors, 30)


def test_too_many_nodes_are_refused_with_the_usable_ones(
    tmp_path: Path, cluster: Raylets, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--scenario", "offline", "--no-metrics", *on(cluster, 7))
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    errors = capsys.readouterr().err
    assert "--nodes: 7 nodes are requested, but only 2 nodes of the cluster can be used: " in errors
    assert "(1 CPU); " in errors
    assert not (tmp_path / "run").exists()


def test_a_head_server_that_dies_at_its_start_is_restarted(
    cluster: Raylets, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ray's head starts a server for each client."""
    killed: list[int] = []
    ended = threading.Event()

    def kill_the_first() -> None:
        while not killed and not ended.wait(0.002):
            for process in psutil.process_iter(["cmdline"]):
                if "--mode=specific-server" in (process.info["cmdline"] or ()):
                    with suppress(psutil.Error):
                        process.kill()
                        killed.append(process.pid)

    thread = threading.Thread(target=kill_the_first)
    thread.start()
    try:
        assert main(["list", "--nodes", cluster.nodes]) == 0
    finally:
        ended.set()
        thread.join()
    assert killed
    assert "digits" in capsys.readouterr().out
