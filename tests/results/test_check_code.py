"""`check` runs no code that the folder names, and agrees with an untouched run from any folder."""

import json
from pathlib import Path

import pytest

from harness.cli.main import main
from harness.results.recheck import check, untrusted

DATASET = """
from pathlib import Path
from harness.datasets.digits import DigitsDataset

(Path(__file__).parent / "ran").touch()

class Mine(DigitsDataset):
    pass
"""
BACKEND = """
from harness.backends.ort import OrtBackend

class Mine(OrtBackend):
    pass
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run of a dataset and a backend that were named by relative paths."""
    (tmp_path / "data.py").write_text(DATASET)
    (tmp_path / "mine.py").write_text(BACKEND)
    monkeypatch.chdir(tmp_path)
    words = ["--scenario", "single-stream", "--queries", "300", "--quiet", "--no-report"]
    words += ["--backend", "mine.py:Mine", "--dataset", "data.py:Mine", "--no-metrics"]
    assert main([*words, "--out", "run"]) == 0
    (tmp_path / "ran").unlink()
    return tmp_path / "run"


def test_an_untouched_run_of_own_plugins_agrees_from_any_folder(
    run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Bug: `check` accused runs whose plug-ins were named by a relative path."""
    name = f"{run.parent}/data.py:Mine"
    assert json.loads((run / "result.json").read_text())["dataset"] == "data.py:Mine"
    monkeypatch.chdir("/")
    assert main(["check", str(run)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{run}: result.json agrees with the files; the run is VALID\n"
    assert shown.err == (
        f"harness: {name} is code and did not run, so the score is the stored one: --trust {name}\n"
    )
    assert not (run.parent / "ran").exists()
    assert main(["check", str(run), "--trust", name]) == 0
    assert (run.parent / "ran").exists()
    assert not capsys.readouterr().err


def test_code_that_is_put_into_the_folder_does_not_run(run: Path) -> None:
    """Bug: `check` imported a file that findings.json named, as the user that checks."""
    planted = run / "x.py"
    planted.write_text("open(__file__ + '.ran', 'w')")
    for name in ("findings.json", "config.yaml"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace(f"{run.parent}/data.py:Mine", f"{planted}:D"))
    assert untrusted(run) == [f"{planted}:D"]
    assert check(run)  # result.json and findings.json still name the other
    assert not Path(f"{planted}.ran").exists()
