"""Complete runs with probes during the load, with cancelled requests, and with several models."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from http.server import HTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.cli.main import main
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen import cancelled
from harness.models.generation.prefixes import PrefixCache
from harness.results.run_files import read_files
from harness.run.supervisor.metrics import otlp_push
from tests.run.test_token_runs import ran, right
from tests.serve.conftest import Server, tinylm
from tests.stand_ins.servers.quiet import QuietHandler, in_thread
from tests.stand_ins.servers.token_server import VLLM

LOOP = ("--scenario", "server", "--mode", "performance", "--concurrency", "4", "--slo", "p90=20s")


def test_probes_are_measured_beside_the_load(tmp_path: Path) -> None:
    dialect = replace(VLLM, first_s=0.03, gap_s=0.005)
    words = (*LOOP, "--queries", "120", "--probe-rate", "20")
    result = right(*ran(tmp_path, dialect, *words))
    probes = result["probes"]
    took_s = result["queries"]["took_s"]
    assert 0.3 * 20 * took_s < probes["sent"] < 2.5 * 20 * took_s + 5
    assert (probes["answered"], probes["failed"], probes["unanswered"]) == (probes["sent"], 0, 0)
    assert probes["latency_ns"]["p50"] >= probes["first_token_ns"]["p50"] >= 30 * NS_PER_MS
    assert probes["alone_ns"]["p50"] >= 30 * NS_PER_MS
    assert result["tokens"]["answers"] == result["queries"]["samples_answered"] == 120
    assert any("probes during the load" in note for note in result["not_for_submission"])
    assert main(["check", str(tmp_path / "run")]) == 0


def test_probes_that_fail_leave_the_run_valid(tmp_path: Path) -> None:
    """The server fails every seventh request by number. The server numbers both the requests of the run and the probes."""
    dialect = replace(VLLM, fault="error-200", every=7, in_run=True, gap_s=0.002)
    status, result = ran(tmp_path, dialect, *LOOP, "--queries", "100", "--probe-rate", "50")
    assert status == 4
    failed = result["client"]["failures"]["refused"]
    assert result["queries"]["samples_failed"] == failed
    probes = result["probes"]
    assert probes["failed"] + probes["answered"] + probes["unanswered"] == probes["sent"]


def test_cancelled_requests_are_neither_answers_nor_failures(tmp_path: Path) -> None:
    dialect = replace(VLLM, first_s=0.02, gap_s=0.02)
    words = (*LOOP, "--queries", "100", "--cancel", "20%@70ms")
    result = right(*ran(tmp_path, dialect, *words))
    found, queries = result["cancellations"], result["queries"]
    assert found["chosen"] > 5
    # On a busy machine, an answer may arrive before its cancellation.
    assert 0 <= found["chosen"] - found["cancelled"] <= 2
    assert queries["samples_issued"] == 100
    assert queries["samples_answered"] == 100 - found["cancelled"]
    assert (queries["samples_failed"], result["client"]["failures"]) == (0, {})
    assert result["tokens"]["answers"] == 100 - found["cancelled"]
    # On a busy machine, a first token may arrive after the 70 ms.
    assert 0 < found["begun"] <= found["cancelled"]
    assert 1 <= found["tokens"] / found["cancelled"] <= 5
    assert found["closed_after_ns"]["p50"] >= 65 * NS_PER_MS
    assert found["next_first_token_ns"]["p50"] >= 20 * NS_PER_MS
    # An answer with six tokens takes 120 ms, so the latencies include no cancelled request.
    assert result["latency_ns"]["min"] >= 110 * NS_PER_MS
    by_position = result["tokens"]["itl_by_position"]
    assert [(one["first"], one["last"]) for one in by_position] == [(2, 2), (3, 4), (5, 8)]
    assert all(15 * NS_PER_MS < one["p50_ns"] < 60 * NS_PER_MS for one in by_position)
    run = read_files(tmp_path / "run").performance
    assert run is not None
    assert run.done is not None
    assert run.done.cancelled is not None
    assert run.done.answered_once
    assert cancelled.chosen(run.plan)[run.done.cancelled["order"]].all()
    assert main(["check", str(tmp_path / "run")]) == 0


def test_run_whose_requests_were_all_cancelled_says_so(tmp_path: Path) -> None:
    """Bug: the stated reason was that LoadGen's log was missing, and `check` reported a contradiction."""
    dialect = replace(VLLM, first_s=0.5, gap_s=0.02)
    status, result = ran(tmp_path, dialect, *LOOP, "--queries", "40", "--cancel", "100%@5ms")
    assert status == 4
    assert [reason["code"] for reason in result["reasons"]] == ["all-cancelled"]
    assert "closed all 40 requests before their answers" in result["reasons"][0]["text"]
    assert result["queries"]["samples_answered"] == 0
    assert main(["check", str(tmp_path / "run")]) == 0


def test_requests_that_are_answered_in_time_are_not_cancelled(tmp_path: Path) -> None:
    words = (*LOOP, "--queries", "60", "--cancel", "50%@30s")
    result = right(*ran(tmp_path, VLLM, *words))
    found = result["cancellations"]
    assert found["chosen"] > 10
    assert (found["cancelled"], found["closed_after_ns"]) == (0, None)
    assert result["queries"]["samples_answered"] == 60


def against(
    server: Server, folder: Path, *words: str, loop: Sequence[str] = LOOP
) -> tuple[int, dict[str, Any]]:
    host, port = server.loop.address
    status = main(
        [
            *("--backend", "openai", "--url", f"http://{host}:{port}", "--model", "tinylm"),
            *("--no-metrics", "--no-report", "--out", str(folder / "run"), *loop, *words),
        ]
    )
    return status, json.loads((folder / "run" / "result.json").read_text())


def test_cancelled_requests_free_their_places_in_serve(tmp_path: Path) -> None:
    """Each cancelled answer would have filled the whole context; the server counts each client that leaves."""
    with tinylm() as server:
        words = ("--queries", "200", "--cancel", "30%@2ms", "--backend-option", "ignore_eos=on")
        result = right(*against(server, tmp_path, *words, "--backend-option", "max_tokens=24"))
        assert server.complete("sort 21=", max_tokens=3)["usage"]["completion_tokens"] == 3
        left = server.completions.batching._statistics.left
        assert server.served.generator.is_idle
    found = result["cancellations"]
    # A client may leave at the moment when its answer ends.
    assert 0.8 * found["cancelled"] <= left <= found["cancelled"]
    assert found["cancelled"] > 20


def test_the_reset_before_a_run_is_the_last_request_before_it(tmp_path: Path) -> None:
    """Bug: after the reset, each connection sent a trial prompt, which the run then found in the cache."""
    with tinylm(prefixes=PrefixCache(4, 4096)) as server:
        words = ("--scenario", "single-stream", "--mode", "performance", "--queries", "80")
        cache = ("--before-run", "vllm", "--backend-option", "cache_block=4")
        tokens = right(*against(server, tmp_path, *words, *cache, loop=()))["tokens"]
    assert tokens["cached"] == tokens["reusable"] > 0


def test_results_are_split_by_the_models_of_a_mix(tmp_path: Path) -> None:
    """Bug: without `served=base`, the server did not know the manifest's name."""
    with tinylm("base", "adapter") as server:
        mix = ("--backend-option", "models={base: 3, adapter: 1}")
        words = ("--queries", "200", *mix)
        result = right(*against(server, tmp_path, *words))
    found = result["by_model"]
    adapter, base = found["models"]
    assert (adapter["model"], base["model"]) == ("adapter", "base")
    assert adapter["requests"] + base["requests"] == 200
    assert 0.1 < adapter["share"] < 0.4
    assert adapter["tokens"] + base["tokens"] == result["tokens"]["output"]
    assert found["slowest"] in ("adapter", "base")
    assert 1 <= found["slowest_ratio"] < 5
    assert 0.5 < found["fairness"] <= 1
    assert result["backend_description"]["models"] == {"base": 3.0, "adapter": 1.0}
    # Bug: the second model's name counted as a model for which no request had asked.
    assert "other-model" not in {doubt["code"] for doubt in result["doubts"]}
    assert main(["check", str(tmp_path / "run")]) == 0


def test_a_model_that_the_server_lacks_is_refused(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with tinylm("base") as server:
        host, port = server.loop.address
        words = ["--backend", "openai", "--url", f"http://{host}:{port}", "--model", "tinylm"]
        words += ["--backend-option", "models={base: 1, other: 1}", "--no-metrics"]
        assert main([*words, *LOOP, "--queries", "10", "--out", str(tmp_path / "run")]) == 2
    assert "the model 'other' did not answer a one-word prompt" in capfd.readouterr().err


def test_a_ramp_of_sessions_is_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Bug: the measured process ended with an AssertionError."""
    (tmp_path / "sessions.jsonl").write_text('{"turns": [{"prompt": "sort 21="}]}\n')
    with tinylm("tinylm") as server:
        host, port = server.loop.address
        words = ["--backend", "openai", "--url", f"http://{host}:{port}", "--model", "tinylm"]
        words += ["--dataset", "sessions", "--data-dir", str(tmp_path / "sessions.jsonl")]
        words += ["--scenario", "server", "--mode", "performance", "--slo", "p90=20s"]
        words += ["--arrivals", "ramp:5", "--no-metrics", "--out", str(tmp_path / "run")]
        assert main(words) == 2
    assert (
        "--arrivals ramp does not apply to sessions, which send each turn" in capfd.readouterr().err
    )


class _Collector(HTTPServer):
    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received: list[dict[str, Any]] = []


class _Handler(QuietHandler):
    server: _Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.path == "/v1/metrics"
        self.server.received.append(json.loads(body))
        self.reply(b"{}")


@contextmanager
def collector() -> Iterator[_Collector]:
    server = _Collector()
    with in_thread(server):
        yield server


def histograms(message: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    (resource,) = message["resourceMetrics"]
    (scope,) = resource["scopeMetrics"]
    return {
        metric["name"]: metric["histogram"]["dataPoints"]
        for metric in scope["metrics"]
        if "histogram" in metric
    }


def test_genai_metrics_during_and_after_a_run_have_its_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(otlp_push, "EVERY_S", 0.2)
    dialect = replace(VLLM, first_s=0.02, gap_s=0.02)
    with collector() as found:
        url = f"http://127.0.0.1:{found.server_port}/v1/metrics"
        words = (*LOOP, "--queries", "100", "--metrics-push", url)
        result = right(*ran(tmp_path, dialect, *words))
        command = ["export", str(tmp_path / "run"), "--format", "otlp", "--to"]
        assert main([*command, f"http://127.0.0.1:{found.server_port}"]) == 0
    *live, last, exported = found.received
    assert live, "no message came during the run"
    for message in (last, exported):
        points = histograms(message)
        (duration,) = points["gen_ai.client.operation.duration"]
        assert int(duration["count"]) == sum(map(int, duration["bucketCounts"])) == 100
        # During a run in a closed loop, due times are known only from the times of issue.
        within = {"rel": 0.02} if message is last else {"abs": 2}
        mean_ns = duration["sum"] / 100 * NS_PER_S
        assert mean_ns == pytest.approx(result["latency_ns"]["mean"], **within)
        assert len(duration["bucketCounts"]) == len(duration["explicitBounds"]) + 1
        usage = {
            attribute["value"]["stringValue"]: point
            for point in points["gen_ai.client.token.usage"]
            for attribute in point["attributes"]
            if attribute["key"] == "gen_ai.token.type"
        }
        assert usage["output"]["sum"] == result["tokens"]["output"]
        assert usage["input"]["sum"] == result["tokens"]["input"]
        (gaps,) = points["gen_ai.client.operation.time_per_output_chunk"]
        assert int(gaps["count"]) == sum(result["tokens"]["chunk_gaps"]["counts"])
    (first,) = histograms(exported)["gen_ai.client.operation.time_to_first_chunk"]
    run = read_files(tmp_path / "run").performance
    assert run is not None
    assert run.done is not None
    columns = run.done.columns
    spent_ns = columns["first_token_ns"] - columns["scheduled_ns"]
    assert first["sum"] * NS_PER_S == pytest.approx(int(spent_ns.sum()))
    edges = np.array(first["explicitBounds"]) * NS_PER_S
    places = np.bincount(np.searchsorted(edges, spent_ns), minlength=len(edges) + 1)
    assert [int(count) for count in first["bucketCounts"]] == places.tolist()


def test_a_ramp_holds_a_rate_below_the_one_that_breaks(tmp_path: Path) -> None:
    """The server handles two requests at a time, about 50 ms each, so it keeps up with less than 40 queries/s."""
    dialect = replace(VLLM, first_s=0.05, gap_s=0.0)
    words = ("--scenario", "server", "--mode", "performance", "--slo", "p90=150ms")
    ramp = ("--arrivals", "ramp:8,factor=1.5,step=1s", "--duration", "4s", "--connections", "2")
    status, result = ran(tmp_path, dialect, *words, *ramp)
    found = result["ramp"]
    steps, held = found["steps"], found["steps"][-1]
    assert [step["holds"] for step in steps] == sorted(step["holds"] for step in steps)
    rates = [step["rate_per_s"] for step in steps if not step["holds"]]
    assert rates == pytest.approx([8 * 1.5**power for power in range(len(rates))])
    assert found["held_per_s"] == held["rate_per_s"] < found["broke_per_s"] <= 100
    assert found["held_per_s"] < 40
    queries = result["queries"]
    assert queries["samples_issued"] == sum(step["queries"] for step in steps)
    assert queries["samples_answered"] == result["tokens"]["answers"] == held["queries"]
    assert held["share_low"] <= held["share"] <= held["share_high"]
    assert result["goodput"]["share"] == held["share"]
    assert result["throughput_per_s"]["scheduled"] == pytest.approx(held["rate_per_s"], rel=0.5)
    assert any("grows until an SLO breaks" in note for note in result["not_for_submission"])
    assert {r["code"] for r in result["reasons"]} <= {
        "client-bound",
        "slo-missed",
        "early-stopping",
    }
    assert status == (4 if result["reasons"] else 0)
    assert main(["check", str(tmp_path / "run")]) == 0
