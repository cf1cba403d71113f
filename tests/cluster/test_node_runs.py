"""Complete runs on nodes of this machine: answers, stages, each node's numbers, and the data needed to repeat a run."""

from pathlib import Path

import pytest

from harness.cli.main import main
from harness.errors import ConfigError
from harness.run.measured.nodes.links import NodeLinks
from tests.cluster.hosts import SLEEPING, hosts, names
from tests.cluster.runs import is_whole, ran


def test_two_nodes_answer_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    words = ("--scenario", "offline", "--nodes", "local:2", "--backend", SLEEPING)
    options = (
        *("--backend-option", "ms=10", "--instances", "1", "--threads", "1"),
        *("--max-batch", "8"),
    )
    _, result = ran(out, *words, *options, "--queries", "800", "--mode", "performance")
    is_whole(out, result)
    samples = [node["samples"] for node in result["nodes"]]
    # The limit is far below 400, because a busy machine may delay one of the nodes.
    assert min(samples) >= 80
    assert result["backend_description"]["nodes"] == 2
    assert result["nodes"][0]["infer_p50_ns"] >= 10**7
    for node in result["nodes"]:
        assert node["host"]["rows"] >= 2
        assert node["no_host"] == ""
        assert node["clock_step_ns"] == 0
        assert 0 <= node["stage_error_ns"] < node["infer_p99_ns"]
        series = f'node="{node["node"]}",'
        (line,) = [
            line
            for line in (out / "metrics.prom").read_text().splitlines()
            if line.startswith("harness_node_samples_completed_total") and series in f"{line[:-1]},"
        ]
        assert float(line.split()[-1]) == node["samples"]
    main(["check", str(out), "--details"])
    assert "The work of each node." in capsys.readouterr().out
    assert main(["check", str(out)]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("--scenario", "server", "--nodes", "local:2", "--target-qps", "200", "--queries", "400"),
        ("--scenario", "offline", "--nodes", "local:2", "--queries", "3000"),
        ("--scenario", "offline", "--nodes", "local:2", "--queries", "3000", "--inputs-on-wire"),
        ("--scenario", "single-stream", "--nodes", "local:1", "--queries", "300"),
        ("--scenario", "multi-stream", "--nodes", "local:1", "--queries", "100"),
        ("--scenario", "server", "--nodes", "local:2", "--concurrency", "4", "--queries", "400"),
    ],
    ids=" ".join,
)
def test_every_scenario_runs_on_nodes_and_its_answers_are_scored(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    pytest.importorskip("onnxruntime")
    out = tmp_path / "run"
    _, result = ran(out, *words)
    is_whole(out, result)
    assert result["accuracy"]["value"] == pytest.approx(99.2)
    assert main(["check", str(out)]) == 0
    config = (out / "config.yaml").read_text()
    assert f"nodes: {words[3]}\n" in config
    _, repeated = ran(tmp_path / "again", "--config", str(out / "config.yaml"))
    is_whole(tmp_path / "again", repeated)


@pytest.mark.slow
def test_nodes_that_were_started_by_hand_serve_run_after_run(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    one = ("--backend", "ort", "--instances", "1", "--threads", "1")
    with hosts(one, one) as served:
        for scenario in ("offline", "server"):
            out = tmp_path / scenario
            load = ("--target-qps", "100") if scenario == "server" else ()
            words = ("--scenario", scenario, "--nodes", names(served), "--queries", "300")
            _, result = ran(out, *words, *load)
            is_whole(out, result)
            assert [node["node"] for node in result["nodes"]] == names(served).split(",")


def test_a_node_has_one_run_at_a_time_and_one_name() -> None:
    """Bug: a second run made the node load different samples, and 1,848 of 2,400 samples of the first run failed."""
    with hosts(("--backend", "null")) as served:
        url = f"http://{names(served)}"
        first, second = NodeLinks([url]), NodeLinks([url])
        first.load([0])
        first.load([0, 1])
        with pytest.raises(ConfigError, match="is in use by another run: wait until it ends"):
            second.load([2])
        first.close()
        second.load([2])
        second.close()

        port = url.rpartition(":")[2]
        twice = NodeLinks([url, f"http://localhost:{port}"])
        with pytest.raises(
            ConfigError, match=f"localhost:{port} are the same node: drop one of them"
        ):
            twice.facts()
        twice.close()
