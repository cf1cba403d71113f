"""`check` runs no code that the folder names, and accepts an unedited run from any working directory."""

import json
import shutil
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.models.manifest.model import MODELS_DIR
from harness.results.recheck import check, untrusted
from tests.builders.edited import edit

DATASET = """
from pathlib import Path
from harness.datasets.digits import DigitsDataset

(Path(__file__).parent / "ran").touch()

class Mine(DigitsDataset):
    pass
"""
FILES = {
    "data.py": DATASET,
    "mine.py": """
from harness.backends.ort import OrtBackend as Backend
from harness.accuracy.top1 import Top1 as Metric
from harness.machine.power.meters.estimate import EstimateMeter as Meter
""",
    "hook.py": """
def classes(outputs, indices):
    (rows,) = outputs.values()
    return rows.argmax(axis=1)
""",
}
MODEL = """
name: mine
version: "1"
description: digits with a hook
licence: none
task: image-classification
files: {onnx: {path: digits.onnx, sha256: null}}
inputs: [{name: image, dtype: float32, shape: [batch, 1, 8, 8]}]
outputs: [{name: logits, postprocess: [{hook: {file: hook.py, function: classes}}]}]
dataset: digits
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns a run with every kind of plug-in, a model and a hook, all named by relative paths."""
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    shutil.copy(MODELS_DIR / "digits.onnx", tmp_path)
    (tmp_path / "model.yaml").write_text(MODEL)
    monkeypatch.chdir(tmp_path)
    words = ["--scenario", "single-stream", "--queries", "300", "--quiet", "--no-report"]
    words += ["--backend", "mine.py:Backend", "--dataset", "data.py:Mine", "--no-metrics"]
    words += ["--metric", "mine.py:Metric", "--meter", "mine.py:Meter=40"]
    assert main([*words, "--model", "model.yaml", "--hook", "hook.py", "--out", "run"]) == 0
    (tmp_path / "ran").unlink()
    return tmp_path / "run"


@pytest.mark.slow
def test_an_untouched_run_of_own_plugins_agrees_from_any_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `check` reported contradictions in runs whose plug-ins were named by a relative path."""
    names = (f"{run.parent}/data.py:Mine", f"{run.parent}/mine.py:Metric")
    assert json.loads((run / "result.json").read_text())["dataset"] == "data.py:Mine"
    monkeypatch.chdir("/")
    assert main(["check", str(run)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{run}: result.json agrees with the files; the run is VALID\n"
    assert shown.err.splitlines() == [
        f"harness: {name} is code and did not run, so the stored score is used: pass --trust {name}"
        for name in names
    ]
    assert not (run.parent / "ran").exists()
    trust = [word for name in names for word in ("--trust", name)]
    assert main(["check", str(run), *trust]) == 0
    assert (run.parent / "ran").exists()
    assert not capsys.readouterr().err


def test_a_dataset_of_another_package_runs_only_when_it_is_trusted(run: Path) -> None:
    """Bug: `check` ran datasets and metrics that other packages register."""
    edit(run / "findings.json", lambda said: said.update(dataset="theirs"))
    assert untrusted(run) == ["theirs", f"{run.parent}/mine.py:Metric"]
    assert untrusted(run, ["theirs", "mine.py:Metric"]) == []


def test_code_that_is_put_into_the_folder_does_not_run(run: Path) -> None:
    """Bug: `check` imported a file that findings.json named, with the rights of the user who ran `check`."""
    planted = run / "x.py"
    planted.write_text("open(__file__ + '.ran', 'w')")
    for name in ("findings.json", "config.yaml"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace(f"{run.parent}/data.py:Mine", f"{planted}:D"))
    assert untrusted(run) == [f"{planted}:D", f"{run.parent}/mine.py:Metric"]
    # `check` finds a difference, because not every file of the run names the planted file.
    assert check(run)
    assert not Path(f"{planted}.ran").exists()
