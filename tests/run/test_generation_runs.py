"""Complete runs of the embedded language model, in process and with `serve`, are VALID, correct and repeatable."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.core.config.parse import parse_slo
from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.loadgen.logs import ACCURACY, read_logged_answers
from harness.run.supervisor.preflight import resolve
from harness.submit.rules.tree.consistency import verify_consistency
from tests.builders.serving import serving

pytest.importorskip("onnxruntime")

LOAD = {
    "single-stream": ("--queries", "100"),
    "multi-stream": ("--queries", "700"),
    "offline": ("--queries", "400"),
    "server": ("--target-qps", "40", "--queries", "1200", "--slo", "p90=10s"),
}


def ran(folder: Path, *words: str) -> dict[str, Any]:
    """Returns the result of a VALID run; on a busy machine, the client or LoadGen may get too little CPU time."""
    command = ["--model", "tinylm", "--no-metrics", "--no-report", "--out", str(folder), *words]
    status = main(command)
    result: dict[str, Any] = json.loads((folder / "result.json").read_text())
    assert {reason["code"] for reason in result["reasons"]} <= {"client-bound"}, result["reasons"]
    assert status == (4 if result["reasons"] else 0)
    return result


def answers(folder: Path) -> dict[int, str]:
    """Maps a dataset index to the answer in the accuracy run, in hexadecimal."""
    rows = json.loads((folder / "accuracy" / "mlperf_log_accuracy.json").read_text())
    return {row["qsl_idx"]: row["data"] for row in rows}


def check_tokens(result: dict[str, Any]) -> None:
    tokens = result["tokens"]
    assert tokens["is_exact"]
    assert tokens["tokens_per_chunk"] == pytest.approx(1, abs=0.25)
    assert 4 <= tokens["output_mean"] <= 21
    assert tokens["finish_reasons"] == {"stop": tokens["answers"]}
    for time in ("ttft_ns", "tpot_ns", "itl_ns"):
        assert 0 < tokens[time]["p50"] <= tokens[time]["p99"]


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving("tinylm", "--backend", "ort", "--threads", "1", "--max-batch", "8") as served:
        yield f"http://127.0.0.1:{served.port}"


@pytest.mark.slow
@pytest.mark.parametrize("scenario", LOAD)
def test_a_served_language_model_is_valid_and_right_in_all_scenarios(
    scenario: str, url: str, tmp_path: Path
) -> None:
    words = ("--backend", "openai", "--url", url, "--scenario", scenario, "--mode", "both")
    result = ran(tmp_path / "run", *words, *LOAD[scenario])
    assert result["accuracy"]["metric"] == "exact_match"
    assert result["accuracy"]["value"] >= 97
    check_tokens(result)
    assert result["tokens"]["source"] == "usage"
    assert (
        main(["check", str(tmp_path / "run")]) == 0
    )  # the files agree, also if the run is INVALID


@pytest.mark.slow
@pytest.mark.parametrize("scenario", LOAD)
def test_a_language_model_in_process_is_valid_and_right_in_all_scenarios(
    scenario: str, tmp_path: Path
) -> None:
    words = ("--backend", "ort", "--scenario", scenario, "--mode", "both")
    result = ran(tmp_path / "run", *words, *LOAD[scenario])
    assert result["accuracy"]["value"] >= 97
    check_tokens(result)
    assert result["tokens"]["source"] == "the engine"
    assert result["plan"]["dispatcher"].endswith("generating")
    assert main(["check", str(tmp_path / "run")]) == 0


@pytest.mark.slow
def test_answers_are_the_same_twice_and_on_both_sides_of_the_wire(url: str, tmp_path: Path) -> None:
    accuracy = ("--scenario", "offline", "--mode", "accuracy")
    for name in ("first", "second"):
        ran(tmp_path / name, "--backend", "openai", "--url", url, *accuracy)
    ran(tmp_path / "here", "--backend", "ort", *accuracy)
    first = answers(tmp_path / "first")
    assert len(first) == 500
    assert first == answers(tmp_path / "second") == answers(tmp_path / "here")


@pytest.mark.slow
def test_options_of_batches_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "tinylm", "--scenario", "server", "--batch-wait", "1ms")
    assert main([*words, "--out", str(tmp_path / "run")]) == 2
    assert (
        "model 'tinylm' generates its answers token by token, without batches: drop --batch-wait"
        in capsys.readouterr().err
    )


@pytest.mark.slow
@pytest.mark.parametrize("bound", ["10s", "1us"])
def test_token_slos_in_process_are_judged_by_loadgen_and_the_journal(
    bound: str, tmp_path: Path
) -> None:
    words = ["--scenario", "server", "--model", "tinylm", "--mode", "both", "--no-metrics"]
    slos = ("ttft:p90=10s", "tpot:p90=10s", f"itl:p90={bound}")
    words += [word for slo in slos for word in ("--slo", slo)]
    load = ["--target-qps", "30", "--queries", "600", "--no-report"]
    status = main([*words, *load, "--out", str(tmp_path / "run")])
    result = json.loads((tmp_path / "run/result.json").read_text())
    codes = [reason["code"] for reason in result["reasons"]]
    assert codes == ([] if bound == "10s" else ["slo-missed"])
    assert status == (0 if bound == "10s" else 4)
    tokens = result["tokens"]
    assert tokens["loadgen"]["ttft_ns"]["p50"] >= tokens["ttft_ns"]["p50"]
    assert tokens["loadgen"]["tpot_ns"]["p50"] <= tokens["tpot_ns"]["p50"] * 1.01
    assert [one["met"] for one in result["goodput"]["slos"]] == [True, True, bound == "10s"]
    assert (result["goodput"]["share"] == 1.0) == (bound == "10s")
    logged = [*read_logged_answers(tmp_path / "run/performance/run_1" / ACCURACY)]
    text = verify_consistency(logged, "int32", [0], "Server")
    assert text.startswith("First token check pass: True\n")
    assert text.endswith("TEST06 verification complete\n")


@pytest.mark.slow
def test_trace_sets_the_arrivals_and_lengths_of_prompts_and_answers(
    tmp_path: Path,
) -> None:
    path = tmp_path / "trace.jsonl"
    rows = [(n * 4, 8 + n % 9, 1 + n % 5, [0, n % 3]) for n in range(120)]
    keys = ("timestamp", "input_length", "output_length", "hash_ids")
    path.write_text("".join(json.dumps(dict(zip(keys, r, strict=True))) + "\n" for r in rows))
    words = ("--scenario", "server", "--dataset", "trace", "--data-dir", str(path))
    options = ("--dataset-option", "tokens=5:15", "--dataset-option", "block=6")
    load = ("--arrivals", str(path), "--slo", "p90=10s", "--mode", "performance")
    result = ran(tmp_path / "run", *words, *options, *load)
    tokens = result["tokens"]
    assert tokens["input"] == sum(row[1] for row in rows)
    assert tokens["answers"] == len(rows)
    assert tokens["output_mean"] <= sum(r[2] for r in rows) / len(rows)
    assert result["dataset_description"]["format"] == "Mooncake"
    with np.load(tmp_path / "run/performance/run_1/completions.npz") as file:
        due = file["scheduled_ns"]
        assert (due - due[0]).tolist() == [r[0] * 10**6 for r in rows]
        assert file["index"].tolist() == [*range(120)]
    stored = yaml.safe_load((tmp_path / "run/config.yaml").read_text())
    assert stored["dataset_option"] == ["tokens=5:15", "block=6"]


@pytest.mark.slow
@pytest.mark.parametrize("served", [False, True])
def test_conversations_go_on_turn_by_turn(served: bool, url: str, tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    chats = [
        {
            "conversations": [
                {"from": ("human", "gpt")[n % 2], "value": "sort 312"} for n in range(m)
            ]
        }
        for m in (2, 4, 6)
    ]
    path.write_text(json.dumps(chats))
    words = ("--scenario", "server", "--dataset", "conversations", "--data-dir", str(path))
    load = ("--concurrency", "2", "--queries", "150", "--slo", "p90=10s", "--mode", "performance")
    remote = ("--backend", "openai", "--url", url) if served else ()
    result = ran(tmp_path / "run", *words, *load, *remote)
    assert result["tokens"]["answers"] == 150
    with np.load(tmp_path / "run/performance/run_1/completions.npz") as file:
        samples = file["index"].tolist()
    followed = {0: (), 1: (2,), 2: (), 3: (4,), 4: (5,), 5: ()}
    counts = [samples.count(n) for n in range(6)]
    for sample, after in followed.items():
        for following in after:
            assert 0 <= counts[sample] - counts[following] <= 2
    assert min(counts) > 0


@pytest.mark.slow
def test_synthetic_prompts_have_the_requested_lengths(tmp_path: Path) -> None:
    options = ("input=10:21", "output=4", "prefix=0.5", "tokens=5:15", "count=64")
    words = [word for option in options for word in ("--dataset-option", option)]
    dataset = ("--scenario", "offline", "--dataset", "synthetic-prompts", "--queries", "320")
    result = ran(tmp_path / "run", *dataset, *words, "--mode", "performance")
    assert 10 <= result["tokens"]["input"] / 320 <= 20
    assert 1 <= result["tokens"]["output_mean"] <= 4
    assert result["dataset_description"]["prefix_share"] == 0.5


def test_a_model_without_tokens_takes_no_token_slo() -> None:
    config = RunConfig(scenario="server", model="digits", slo=(parse_slo("tpot:p99=1s"),))
    with pytest.raises(
        ConfigError, match=r"^--slo tpot:p99 needs a language model, but model 'digits'"
    ):
        resolve(config)
