"""A run is resolved once: names are looked up before the run, and passed on as objects."""

import json
import shutil
from pathlib import Path

import pytest

from harness.core.config.run_config import RunConfig
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model, model_from_json, named_models
from harness.models.manifest.model import MODELS_DIR
from harness.run.setup import Setup
from harness.run.supervisor import preflight
from tests.faults.command import run

COUNT_READS = """\
import os, sys

def note(event, arguments):
    if event == "open" and str(arguments[0]) == os.environ["WATCHED"] and arguments[1] == "r":
        with open(os.environ["READS"], "a") as reads:
            reads.write(f"{os.getpid()}\\n")

sys.addaudithook(note)
"""


def digits(folder: Path) -> Path:
    """Copies the digits model's manifest and files."""
    for name in ("digits.yaml", "digits.onnx"):
        shutil.copy(MODELS_DIR / name, folder)
    return folder / "digits.yaml"


@pytest.mark.slow
def test_manifest_is_read_once_by_the_command_line_and_once_by_preflight(
    tmp_path: Path,
) -> None:
    """Bug: the manifest was read five times, for example by both measured processes and for the score."""
    manifest, reads = digits(tmp_path), tmp_path / "reads"
    (tmp_path / "sitecustomize.py").write_text(COUNT_READS)
    ended = run(
        "--scenario", "offline", "--model", str(manifest), "--queries", "500",
        "--out", str(tmp_path / "run"),
        env={
            "PYTHONPATH": str(tmp_path),
            "WATCHED": str(manifest),
            "READS": str(reads),
        },
    )  # fmt: skip
    assert ended.status == 0, ended
    pids = reads.read_text().split()
    assert (len(pids), len(set(pids))) == (2, 1)


@pytest.mark.parametrize("name", named_models())
def test_a_model_is_the_same_in_another_process(name: str) -> None:
    model = load_model(name)
    again = model_from_json(json.loads(json.dumps(model.to_json())))
    assert type(again) is type(model)
    assert (again.name, again.manifest, again.folder) == (model.name, model.manifest, model.folder)
    assert again.to_json() == model.to_json()


def test_a_bare_file_is_the_same_in_another_process(tmp_path: Path) -> None:
    digits(tmp_path)
    model = load_model(str(tmp_path / "digits.onnx"))
    again = model_from_json(json.loads(json.dumps(model.to_json())))
    assert (again.name, again.manifest, again.path(("onnx",))) == (
        "digits",
        None,
        tmp_path / "digits.onnx",
    )


def test_the_setup_passes_through_the_channel_unchanged(tmp_path: Path) -> None:
    config = RunConfig(scenario="multi-stream", backend="null", mode="performance", seed=7)
    resolved = preflight.resolve(config)
    assert (resolved.dataset, resolved.metric, resolved.slo) == ("digits", "top1", None)
    setup = Setup.of(resolved, outdir=tmp_path, calibrate_s=0.5)
    sent = json.loads(json.dumps(setup.to_json()))
    received = Setup.from_json(sent)
    assert json.loads(json.dumps(received.to_json())) == sent
    assert (received.config, received.instances) == (config, resolved.instances)
    assert (received.dispatch, received.samples_per_query) == ("inline", 8)
    assert received.model.manifest == resolved.model.manifest


def test_an_unknown_model_is_reported_in_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^no model named 'digts': did you mean 'digits'\?$"):
        preflight.resolve(RunConfig(scenario="offline", backend="null", model="digts"))
