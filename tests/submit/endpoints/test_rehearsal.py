"""A complete Endpoints submission is rehearsed with `serve tinylm`, the unmodified client, our witness and the real
checker.
"""

import json
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from harness.cli.main import main
from harness.submit.endpoints import runs
from harness.submit.endpoints.rules import official
from harness.submit.endpoints.rules.validate import validate
from harness.submit.endpoints.witness.doubts import REFUSED
from tests.builders.submit.endpoints_events import write_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.limit_s(3000)]

POINTS = (1, 4, 8, 16, 32, 48, 64)
PROMPTS = 40
ALLOWED = {
    # The rehearsal breaks these rules because its model does not belong to a benchmark, its points are short, and its
    # power comes from the rules' table.
    *("model-name-valid", "model-name-consistency", "accuracy-gate"),
    *("point-duration", "steady-state-basis", "power-estimated"),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    log = tmp_path_factory.mktemp("serve") / "log"
    words = [sys.executable, "-P", "-m", "harness", "serve", "tinylm", "--listen", "127.0.0.1:0"]
    with log.open("w") as file, subprocess.Popen(words, stdout=file, stderr=file) as process:
        try:
            yield _address(log, process)
        finally:
            process.terminate()
            process.wait(30)


def _address(log: Path, process: "subprocess.Popen[bytes]") -> str:
    for _ in range(600):
        if match := re.search(r"http://127\.0\.0\.1:\d+", log.read_text()):
            return match[0]
        assert process.poll() is None, log.read_text()
        time.sleep(0.1)
    raise TimeoutError(log.read_text())


def prompts(path: Path) -> None:
    """Writes strings of digits to sort or to reverse, with the right answers."""
    generator = random.Random(1)
    rows = []
    for _ in range(PROMPTS):
        digits = "".join(generator.choices("0123456789", k=generator.randint(3, 20)))
        task = generator.choice(("sort", "reverse"))
        answer = "".join(sorted(digits)) if task == "sort" else digits[::-1]
        rows.append({"prompt": f"{task} {digits}=", "answer": answer})
    # The client reads a column of digits as numbers, which it cannot score, so one row contains a word.
    rows[-1]["answer"] = "a word"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def template(path: Path) -> None:
    data = {"path": "prompts.jsonl", "parser": {"prompt": "prompt"}}
    scoring = {
        "eval_method": "string_match",
        "ground_truth": "answer",
        "extractor": "identity_extractor",
    }
    content = {
        "name": "tinylm",
        "version": "1.0",
        "model_params": {"name": "tinylm", "temperature": 0.0, "max_new_tokens": 24},
        "datasets": [
            {"name": "digits", "type": "performance", **data},
            {"name": "digits_score", "type": "accuracy", **data, "accuracy_config": scoring},
        ],
        "settings": {
            "service_ready_timeout_s": 120,
            "client": {
                "num_workers": 1,
                "warmup_connections": 0,
                "worker_initialization_timeout": 300.0,
            },
        },
        "endpoint_config": {"api_type": "openai"},
    }
    path.write_text(yaml.safe_dump(content))


def trajectories(path: Path) -> None:
    """Writes as many conversations as the rules require, each with two questions."""
    drawn = random.Random(2)
    with path.open("w") as file:
        for number in range(613):
            for turn in range(4):
                row: dict[str, object] = {"conversation_id": f"c{number}", "turn": turn + 1}
                digits = "".join(drawn.choices("0123456789", k=5))
                if turn % 2 == 0:
                    row |= {"role": "user", "content": f"sort {digits}=", "delay_seconds": 0.01}
                else:
                    row |= {"role": "assistant", "content": digits}
                if turn == 0:
                    row["system"] = "You sort digits."
                file.write(json.dumps(row) + "\n")


def agentic_template(path: Path) -> None:
    template(path)
    content = yaml.safe_load(path.read_text())
    content["model_params"]["chat_template_kwargs"] = {"enable_thinking": True}
    content["datasets"][0] = {
        "name": "agentic_combined",
        "type": "performance",
        "path": "trajectories.jsonl",
        "agentic_inference": {
            "turn_timeout_s": 600.0,
            "enable_salt": True,
            "inject_tool_delay": True,
            "num_trajectories_to_issue": 613,
            "stop_issuing_on_first_user_complete": False,
        },
    }
    path.write_text(yaml.safe_dump(content))


def test_an_agentic_point_with_reasoning_is_recomputed(
    server: str, client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompts(tmp_path / "prompts.jsonl")
    trajectories(tmp_path / "trajectories.jsonl")
    agentic_template(tmp_path / "template.yaml")
    chat = (
        "{% for m in messages %}{{ m.role }} {{ m.reasoning_content }} {{ m.content }}{% endfor %}"
    )
    tokenizer = write_tokenizer(tmp_path / "tok", chat)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    work = tmp_path / "work"
    words = ["--work", str(work), "--rehearsal", "--duration", "1s", "--submitter", "LabOrg"]
    words += ["--system", "box", "--division", "standardized", "--model", "qwen3_6-35b-a3b"]
    words += ["--cohort", "2026-10-C1", "--url", server, "--served", "tinylm"]
    words += ["--tokenizer", str(tokenizer), "--template", str(tmp_path / "template.yaml")]
    words += ["--c-max", "64", "--points", ",".join(map(str, POINTS))]
    assert main(["endpoints", "plan", *words]) == 0
    chosen = ["--work", str(work), "--only", "r16"]
    assert main(["endpoints", "run", *chosen, "--client", str(client)]) == 0
    assert main(["endpoints", "witness", *chosen]) == 0
    attempt = runs.newest(work, "r16")
    assert attempt is not None
    found = json.loads((attempt.folder / runs.WITNESS).read_text())
    assert found["passed"]
    assert found["tokens_absent"] is None
    assert REFUSED.isdisjoint(doubt["code"] for doubt in found["doubts"])


def test_a_rehearsal_ends_in_a_tree_with_two_complaints_only(
    server: str,
    client: Path,
    checker: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    prompts(tmp_path / "prompts.jsonl")
    write_tokenizer(tmp_path / "tok")
    template(tmp_path / "template.yaml")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    work = tmp_path / "work"
    words = ["--work", str(work), "--rehearsal", "--duration", "1s", "--submitter", "LabOrg"]
    words += ["--system", "box", "--division", "standardized", "--model", "tinylm"]
    words += ["--cohort", "2026-10-C1", "--url", server, "--served", "tinylm"]
    words += ["--tokenizer", str(tmp_path / "tok"), "--template", str(tmp_path / "template.yaml")]
    words += ["--c-max", "64", "--points", ",".join(map(str, POINTS))]
    assert main(["endpoints", "plan", *words]) == 0
    assert main(["endpoints", "run", "--work", str(work), "--client", str(client)]) == 0
    assert main(["endpoints", "witness", "--work", str(work)]) == 0
    for concurrency in POINTS:
        attempt = runs.newest(work, f"r{concurrency}")
        assert attempt is not None
        found = json.loads((attempt.folder / runs.WITNESS).read_text())
        assert found["passed"]
        codes = {doubt["code"] for doubt in found["doubts"]}
        assert codes <= {"tpot-negative", "tpot-by-chunk", "client-slow", "below-concurrency"}
    describe = {
        "cooling": "air",
        "data_parallel": 1,
        "accelerator_model_name": "none",
        "power": {
            "cooling": "air",
            "node_sets": [
                {
                    "components": {
                        "cpu": {"count_per_node": 1, "model": "Intel Xeon 32-core"},
                        "accelerator": {"count_per_node": 1, "model": "NVIDIA B200"},
                    }
                }
            ],
        },
    }
    (tmp_path / "describe.yaml").write_text(yaml.safe_dump(describe))
    words = [
        "endpoints",
        "pack",
        "--work",
        str(work),
        "--describe",
        str(tmp_path / "describe.yaml"),
    ]
    assert main(words) == 0
    capsys.readouterr()
    tree = work / "tree"
    checked = validate(tree)
    assert checked.counted(rehearsal=True) == []
    outcomes = official.run_tools(checker, tree, checked)
    assert {row[0] for row in (*outcomes[0].errors, *outcomes[0].warnings)} <= ALLOWED
    assert {row[0] for row in outcomes[0].errors} == {"model-name-valid"}
    assert outcomes[1].passed
    power = json.loads(next(tree.rglob("system_power.json")).read_text())
    assert power["provisioned_power_kw"] == 2.02  # 2.02 kW are (350 + 1,000) W x 1.5
    score = json.loads(next(tree.rglob("r64/accuracy_results.json")).read_text())
    assert score["accuracy_scores"][0]["score"] > 0.9
