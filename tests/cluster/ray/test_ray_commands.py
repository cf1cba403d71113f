"""Commands on the nodes of a Ray cluster, and the list of the cluster's nodes."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from harness.cli.main import main
from harness.results.database import newest_first
from tests.builders.refusals import Said
from tests.builders.serving import ROOT
from tests.cluster.ray.raylets import WAITS, Raylets, freeze, has_ended, words_of

pytest.importorskip("ray")
pytestmark = [pytest.mark.slow, WAITS]


def test_the_nodes_of_a_cluster_are_listed_with_their_models(
    cluster: Raylets, prints: Said
) -> None:
    title, heads, *rows = prints("list", "--nodes", cluster.nodes).splitlines()
    assert title.startswith("Ray ")
    assert heads.split()[:3] == ["node", "machine", "CPU"]
    assert len(rows) == sum(1 for pid in cluster.pids if Path(f"/proc/{pid}").exists())
    assert all(" digits" in row for row in rows)


def test_a_sweep_on_two_nodes_continues_where_it_was_stopped(
    tmp_path: Path, cluster: Raylets, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "fleet"
    options = ("--scenario", "server", "--backend", "null", "--rate", "50,60", "--duration", "8s")
    sweep = ("sweep", *options, "--no-metrics", "--no-report")
    words = ["on", cluster.nodes, "--node-count", "2", "--out", str(out), "--", *sweep]
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *words], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as process:
        end_s = time.monotonic() + 200
        while not any(out.glob("*/sweep/points/50/result.json")) and time.monotonic() < end_s:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    before = {path: path.read_bytes() for path in out.glob("*/sweep/points/*/result.json")}
    assert before
    assert not hosts_of(cluster)
    assert main(words) in (0, 4)
    shown = capsys.readouterr().out
    assert "runs are ranked within a node" in shown
    content = json.loads((out / "nodes.json").read_text())
    assert len(content["nodes"]) == 2
    for node in content["nodes"]:
        folder = out / node["node"] / "sweep"
        assert node["node"] in shown
        points = json.loads((folder / "sweep.json").read_text())["points"]
        assert [point["rate_per_s"] for point in points] == [50, 60]
        assert main(["check", str(folder)]) == 0
    assert all(path.read_bytes() == content for path, content in before.items())
    runs = {row["folder"]: row["asked_per_s"] for row in newest_first(out)}
    assert sorted(runs.values()) == [50, 50, 60, 60]
    assert all((out / place / "result.json").is_file() for place in runs)


def test_a_second_ctrl_c_abandons_a_command_that_does_not_end(
    tmp_path: Path, cluster: Raylets
) -> None:
    out = tmp_path / "fleet"
    options = ("--scenario", "server", "--backend", "null", "--mode", "performance")
    command = ("run", *options, "--duration", "60s", "--no-metrics")
    words = ["on", cluster.nodes, "--node-count", "2", "--out", str(out), "--", *command]
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as file,
        subprocess.Popen(
            [sys.executable, "-m", "harness", *words], cwd=ROOT, stderr=file
        ) as process,
    ):
        end_s = time.monotonic() + 120
        frozen: list[int] = []
        while len(frozen) < 2:
            assert time.monotonic() < end_s
            time.sleep(0.1)
            frozen = [pid for pid in hosts_of(cluster) if b"harness.cli.main" in words_of(pid)]
        freeze(frozen)
        hosts = hosts_of(cluster)
        process.send_signal(signal.SIGINT)
        while b"a second Ctrl-C" not in errors.read_bytes():
            assert time.monotonic() < end_s
            time.sleep(0.1)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=5)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=60) == 130
    assert has_ended(hosts, 60)


def hosts_of(cluster: Raylets) -> list[int]:
    return [pid for raylet in cluster.pids for pid in cluster.hosts(raylet)]


def test_nodes_share_values_and_lost_ones_are_measured_again(
    tmp_path: Path, cluster: Raylets, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "shared"
    options = ("--scenario", "server", "--backend", "null", "--mode", "performance", "--duration")
    command = ("run", *options, "6s", "--no-metrics", "--no-report", "--target-qps", "{}")
    words = ["on", cluster.nodes, "--node-count", "2", "--out", str(out)]
    words += ["--share", "50,60,70,80", "--", *command]
    with subprocess.Popen(
        [sys.executable, "-m", "harness", *words], cwd=ROOT, stderr=subprocess.DEVNULL
    ) as process:
        end_s = time.monotonic() + 200
        while not has_a_row(out) and time.monotonic() < end_s:
            time.sleep(0.05)
        os.kill(cluster.pids[-1], signal.SIGKILL)
        assert process.wait(timeout=240) == 5
    rows = {row["folder"]: row for row in json.loads((out / "nodes.json").read_text())["nodes"]}
    # All commands have a row, because the other node took the waiting command.
    assert set(rows) == {"50", "60", "70", "80"}
    lost = [name for name, row in rows.items() if row["lost"]]
    assert len(lost) == 1
    kept = {name: (out / name / "run/result.json").read_bytes() for name in rows.keys() - {*lost}}
    cluster.add()
    assert main(words) in (0, 4)
    shown = capsys.readouterr().out
    assert "several nodes measured, so their numbers also compare machines" in shown
    for name in rows:
        config = yaml.safe_load((out / name / "run/config.yaml").read_text())
        assert float(config["target_qps"]) == float(name)
    assert all((out / name / "run/result.json").read_bytes() == it for name, it in kept.items())


def has_a_row(out: Path) -> bool:
    """Returns whether a command already has a row in nodes.json."""
    with suppress(OSError, ValueError):
        return bool(json.loads((out / "nodes.json").read_text())["nodes"])
    return False
