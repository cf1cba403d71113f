"""Runs of a model on a real server: `serve` in a separate process and the backend kserve."""

import itertools
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.loadgen.logs import DETAIL, SUMMARY
from tests.builders.serving import serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    pytest.importorskip("onnxruntime")
    with serving("digits", "--backend", "ort") as served:
        yield f"http://127.0.0.1:{served.port}"


def ran(out: Path, url: str, *words: str) -> tuple[int, dict[str, Any]]:
    status = main(
        [
            *(
                "--backend",
                "kserve",
                "--url",
                url,
                "--model",
                "digits",
                "--no-metrics",
                "--no-report",
            ),
            *("--out", str(out), *words),
        ]
    )
    return status, json.loads((out / "result.json").read_text())


def codes(result: dict[str, Any]) -> set[str]:
    return {reason["code"] for reason in result["reasons"]}


def is_whole(out: Path, result: dict[str, Any]) -> None:
    """Checks that every sample was answered once, and that its stages add up to its latency."""
    # These doubts and reasons depend on the load of the machine.
    busy = {"client-bound", "slo-missed", "early-stopping"}
    assert codes(result) <= busy, result["reasons"]
    assert result["queries"]["samples_failed"] == 0
    assert result["client"]["failures"] == {}
    assert result["client"]["ceiling_per_s"] > 0
    with np.load(out / "performance/run_1/completions.npz") as file:
        columns = dict(file)
    order = ("scheduled", "entry", "taken", "sent", "arrived", "read", "decoded", "completed")
    stamps = [columns[f"{name}_ns"] for name in order]
    for earlier, later in itertools.pairwise(stamps):
        assert (earlier <= later).all()
    assert sum(stage["share"] for stage in result["stages_ns"].values()) == pytest.approx(1)


def test_a_server_run_with_accuracy(tmp_path: Path, url: str) -> None:
    out = tmp_path / "run"
    status, result = ran(
        out, url, "--scenario", "server", "--target-qps", "200", "--queries", "400"
    )
    is_whole(out, result)
    assert status == (4 if codes(result) else 0)
    assert result["accuracy"]["value"] == pytest.approx(99.2)
    assert [*result["stages_ns"]] == [
        *("issue_delay", "queue", "send", "remote", "notice", "decode", "complete")
    ]
    # A run without --qdl does not ask for the server's name.
    unasked = {"name": "", "round_trip_ns": None}
    peer = {"url": url, "address": "127.0.0.1", "local": True, **unasked}
    assert (result["client"]["peers"], result["client"]["sut_name"]) == ([peer], "")
    doubts = {doubt["code"] for doubt in result["doubts"]}
    assert "loopback" in doubts
    # The server is another process, but it does not count as foreign load.
    assert "busy-machine" not in doubts
    assert main(["check", str(out)]) == 0  # `check` finds no contradiction among the run's files
    config = (out / "config.yaml").read_text()
    assert f"url:\n- {url}\n" in config
    assert "instances" not in config


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "dispatcher"),
    [
        (("--scenario", "single-stream", "--duration", "1s"), "inline"),
        (("--scenario", "multi-stream", "--duration", "1s"), "inline"),
        (("--scenario", "multi-stream", "--duration", "1s", "--max-batch", "8"), "inline"),
        (("--scenario", "offline", "--duration", "2s"), "direct"),
        (("--scenario", "offline", "--duration", "2s", "--max-batch", "16"), "direct"),
        (("--scenario", "server", "--concurrency", "4", "--duration", "2s"), "direct"),
        (
            (
                "--scenario",
                "server",
                "--target-qps",
                "50",
                "--connections",
                "1",
                "--queries",
                "100",
            ),
            "direct",
        ),
    ],
)
def test_every_scenario_runs_against_a_server(
    tmp_path: Path, url: str, words: tuple[str, ...], dispatcher: str
) -> None:
    out = tmp_path / "run"
    _, result = ran(out, url, *words)
    is_whole(out, result)
    assert result["accuracy"]["value"] == pytest.approx(99.2)
    assert result["client"]["dispatcher"] == dispatcher
    again, repeated = ran(tmp_path / "again", url, "--config", str(out / "config.yaml"))
    assert again in (0, 4)
    is_whole(tmp_path / "again", repeated)


@pytest.mark.slow
def test_two_replicas_share_the_requests(tmp_path: Path, url: str) -> None:
    with serving("digits", "--backend", "ort") as other:
        urls = (url, f"http://127.0.0.1:{other.port}")
        out = tmp_path / "run"
        words = (
            "--url",
            urls[1],
            "--scenario",
            "offline",
            "--duration",
            "2s",
            "--connections",
            "4",
        )
        _, result = ran(out, urls[0], *words)
        is_whole(out, result)
        assert [peer["url"] for peer in result["client"]["peers"]] == [*urls]
        _, printed = other.end(signal.SIGTERM)
    assert "answered" in printed
    assert " 0 requests" not in printed


@pytest.mark.slow
def test_a_qdl_gets_answers_and_the_servers_names(tmp_path: Path) -> None:
    words = ("digits", "--backend", "ort", "--postprocess", "--name")
    with serving(*words, "a") as one, serving(*words, "b") as other:
        urls = [f"http://127.0.0.1:{served.port}" for served in (one, other)]
        out = tmp_path / "run"
        load = ("--scenario", "server", "--target-qps", "200", "--queries", "400")
        _, result = ran(out, urls[0], "--url", urls[1], "--qdl", *load)
        is_whole(out, result)
    assert result["accuracy"]["value"] == pytest.approx(99.2)
    name = "Network SUT: a (same machine), b (same machine)"
    assert result["client"]["sut_name"] == name
    assert [peer["name"] for peer in result["client"]["peers"]] == ["a", "b"]
    for run in ("performance/run_1", "accuracy"):
        assert f'"value": "{name}"' in (out / run / DETAIL).read_text()
    assert f"SUT name : {name}\n" in (out / "performance/run_1" / SUMMARY).read_text()
    assert main(["check", str(out)]) == 0


def refusal(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main([*words]) == 2
    return capsys.readouterr().err


def test_each_mistake_of_a_user_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = ("--scenario", "offline", "--model", "digits")
    assert "backend 'kserve' sends requests to a server: name it with --url" in refusal(
        capsys, *run, "--backend", "kserve"
    )
    local = refusal(capsys, *run, "--backend", "ort", "--url", "http://127.0.0.1:1")
    assert "backend 'ort' runs the model here: use kserve" in local
    several = refusal(
        capsys,
        *(
            *run,
            "--backend",
            "kserve",
            "--url",
            "http://127.0.0.1:1",
            "--url",
            "http://127.0.0.1:1",
        ),
        *("--instances", "2", "--insecure", "--device", "cuda", "--pin"),
    )
    for part in (
        "appears twice",
        "--instances, --pin and --device can only be used with models on this machine",
        "no --url uses either of them",
    ):
        assert part in several
    monkeypatch.delenv("NO_SUCH_TOKEN", raising=False)
    header = ("--header", "Authorization=env:NO_SUCH_TOKEN")
    unset = refusal(capsys, *run, "--backend", "kserve", "--url", "http://127.0.0.1:1", *header)
    assert "the environment variable NO_SUCH_TOKEN is not set" in unset
    monkeypatch.setenv("A_TOKEN", "Bearer hunter2\n")
    header = ("--header", "Authorization=env:A_TOKEN")
    broken = refusal(capsys, *run, "--backend", "kserve", "--url", "http://127.0.0.1:1", *header)
    assert "A_TOKEN has a line break or another character that HTTP forbids" in broken
    assert "hunter2" not in broken
    secret = refusal(capsys, *run, "--backend", "kserve", "--header", "Authorization=hunter2")
    assert "write Authorization=env:VARIABLE" in secret
    assert "hunter2" not in secret
    http, grpc = "http://127.0.0.1:1", "grpc://127.0.0.1:1"
    mixed = refusal(capsys, *run, "--backend", "kserve", "--url", http, "--url", grpc)
    assert "mixes gRPC and HTTP addresses: name all replicas with the same protocol" in mixed
    assert "cannot be reached (Connection refused)" in refusal(capsys, "probe", grpc)
    server = ("--url", "http://127.0.0.1:1", "--model", "of-the-server")
    unknown = refusal(capsys, *run[:2], "--backend", "kserve", *server)
    assert "no model named 'of-the-server'" in unknown
    assert "probe http://127.0.0.1:1` prints one" in unknown
    unknown = refusal(capsys, *run[:2], "--backend", "openai", *server)
    assert "--model FILE.yaml: docs/manifest.md" in unknown
    for verb in ("tune", "sweep"):
        more = ("--batch", "1,2") if verb == "sweep" else ()
        text = refusal(
            capsys, verb, *run, "--backend", "kserve", "--url", "http://127.0.0.1:1", *more
        )
        assert "changes how a model runs on this machine" in text


def test_missing_server_is_reported_in_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    url = "http://127.0.0.1:1"
    run = ("--scenario", "offline", "--model", "digits", "--backend", "kserve", "--url", url)
    text = refusal(capsys, *run)
    assert text.splitlines()[-1] == (
        f"harness: --url {url} cannot be reached (Connection refused): start the server, or check the port"
    )


def test_missing_replica_is_reported_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    gone = "http://127.0.0.1:1"
    run = ("--scenario", "offline", "--model", "digits", "--backend", "kserve", "--no-metrics")
    out = ("--out", str(tmp_path / "run"))
    text = refusal(capsys, *run, *out, "--duration", "1s", "--url", url, "--url", gone)
    assert text.splitlines()[-1] == (
        f"harness: --url {gone} cannot be reached (Connection refused): start the server, or check the port"
    )


def test_a_replica_of_another_model_is_refused_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    """Bug: only the first server was checked before the run, so half of the run's samples failed."""
    with serving("digits", "--backend", "ort", "--postprocess") as other:
        replica = f"http://127.0.0.1:{other.port}"
        run = ("--scenario", "offline", "--model", "digits", "--backend", "kserve", "--no-metrics")
        out = ("--out", str(tmp_path / "run"), "--duration", "1s")
        text = refusal(capsys, *run, *out, "--url", url, "--url", replica)
    assert text.splitlines()[-1] == (
        f"harness: --url {replica} cannot be used (the reply has the outputs answer, not logits): drop it, or make that server serve "
        "the same model as the others"
    )
