"""Complete runs of several models, as in the guide, are VALID; with a failing model a run is INVALID and does not hang."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.cli.main import main
from harness.cli.search import peak
from harness.errors import ConfigError
from harness.models.manifest.model import MODELS_DIR

pytest.importorskip("onnxruntime")

GUIDE = (Path(__file__).parents[3] / "docs/models-sharing.md").read_text()
QUIET = ("--no-metrics", "--quiet")

FLAKY = '''
import threading
import numpy as np

class Flaky:
    """Loads before the run, and not on the threads that answer queries."""

    def __init__(self, setup):
        self._answers = np.zeros((1, 10), np.float32)

    def __enter__(self):
        if threading.current_thread().name.startswith("instance-"):
            raise OSError("no memory for another model")
        return self

    def __exit__(self, *exc):
        pass

    def infer(self, batch):
        return self._answers

    def describe(self):
        return {"framework": "numpy", "precision": "float32"}
'''


def result_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


@pytest.mark.slow
def test_command_of_the_guide_prints_the_shown_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content = re.search(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
    command = re.search(r"^    python -m harness (.*)$", GUIDE, re.MULTILINE)
    assert content is not None
    assert command is not None
    (tmp_path / "set.yaml").write_text(content[1])
    monkeypatch.chdir(tmp_path)
    status = main([*shlex.split(command[1]), "--out", "run", *QUIET])
    text = capsys.readouterr().out
    result = result_of(tmp_path / "run")
    assert {reason["code"] for reason in result["reasons"]} <= {"slo-missed", "early-stopping"}
    assert status == (4 if result["reasons"] else 0)
    for label in ("models  ", "model ", "digits-1 ", "capacity "):
        assert re.search(f"^{label}", text, re.MULTILINE), label
    found = result["models"]
    at_capacity = [p for p in found["curve"][0]["points"] if p["capacity_bytes"] <= 1_000_000]
    assert found["hit_rate"] == pytest.approx(at_capacity[-1]["hit_rate"])
    assert "evictions" in (tmp_path / "run/report.html").read_text()
    metrics = (tmp_path / "run/metrics.prom").read_text()
    assert re.search(
        r'^harness_model_requests_total\{.*origin="hit".*\} [1-9]', metrics, re.MULTILINE
    )
    assert main(["check", "run"]) == 0
    again = main(["--config", "run/config.yaml", "--out", "again", *QUIET])
    assert again in (0, 4)
    counted = [result_of(tmp_path / run)["models"] for run in ("run", "again")]
    assert counted[0]["hits"] == counted[1]["hits"]


@pytest.mark.slow
def test_model_that_can_no_longer_be_loaded_fails_its_queries(tmp_path: Path) -> None:
    (tmp_path / "flaky.py").write_text(FLAKY)
    digits = str(MODELS_DIR / "digits.yaml")
    models = [{"model": digits, "name": name, "bytes": "1MB"} for name in "abc"]
    path = tmp_path / "set.yaml"
    path.write_text(yaml.safe_dump({"models": models, "capacity": "1MB", "workers": 2}))
    words = ("--scenario", "server", "--models", str(path), "--queries", "60", "--target-qps", "60")
    backend = f"{tmp_path / 'flaky.py'}:Flaky"
    status = main([*words, "--backend", backend, "--out", str(tmp_path / "run"), *QUIET])
    assert status == 4
    result = result_of(tmp_path / "run")
    assert "batch-failed" in {reason["code"] for reason in result["reasons"]}
    assert result["models"]["failed"] == 60
    # `check` finds no contradiction among the run's files.
    assert main(["check", str(tmp_path / "run")]) == 0


def test_always_resident_models_must_fit_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: the file sizes were compared with the capacity only after the measured process had started to load."""
    # A run measures `noise_floor` first, so this test fails if the run begins before the comparison.
    monkeypatch.delattr("harness.machine.host.noise_floor")
    path = tmp_path / "set.yaml"
    models = [{"model": "digits", "always": True, "copies": 3}]
    path.write_text(yaml.safe_dump({"models": models, "capacity": "10kB"}))
    words = ("--scenario", "server", "--target-qps", "9", "--models", str(path))
    assert main([*words, "--out", str(tmp_path / "run"), *QUIET]) == 2
    assert re.search(
        r"harness: --models: the [\d,]+ B that are always resident ", capsys.readouterr().err
    )
    assert not (tmp_path / "run").exists()


def test_other_verbs_refuse_a_set_of_models(tmp_path: Path) -> None:
    path = tmp_path / "set.yaml"
    path.write_text("models: [{model: digits}]\ncapacity: 1MB\n")
    with pytest.raises(ConfigError, match=r"this verb varies one model: drop it$"):
        peak(["--scenario", "server", "--models", str(path)])
