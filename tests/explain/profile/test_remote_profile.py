"""Profiles of models on a server, in any scenario, including a server that takes one sample per request."""

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from tests.builders.serving import serving

LOAD = (
    *("--target-qps", "50", "--queries", "64", "--slo", "p90=5s", "--no-metrics"),
    *("--no-report", "--quiet"),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "model", "batches"),
    [("openai", "tinylm", ["1"]), ("kserve", "digits", ["1", "2", "4", "8"])],
)
def test_a_model_on_a_server_is_profiled_under_load(
    backend: str, model: str, batches: list[str], tmp_path: Path
) -> None:
    """Bugs: openai was refused because of batches that nobody had requested, and 64 connections caused a traceback."""
    pytest.importorskip("onnxruntime")
    out = tmp_path / "profile"
    with serving(model, "--backend", "ort") as served:
        words = ("--backend", backend, "--url", f"http://127.0.0.1:{served.port}", "--model", model)
        main(["profile", "--scenario", "server", *words, *LOAD, "--out", str(out)])
    content = json.loads((out / "profile.json").read_text())
    assert [*content["model"]["batches"]] == batches
    assert "has no layer profile" in content["missing"]["layer"]
    assert content["run"]["scenario"] == "server"
