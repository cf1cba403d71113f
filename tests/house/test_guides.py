"""Each guide works without other pages: its commands run in order, with a model that the page does not mention."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import yaml

from harness.datasets.digits import DigitsDataset
from harness.models.manifest.model import MODELS_DIR
from harness.types import DatasetSetup, TensorSpec
from tests.builders.serving import serving
from tests.house.test_readme import COMMAND, is_disturbed, run

DOCS = Path(__file__).parents[2] / "docs"
PYTHON = re.compile(r"```python\n(.*?)```", re.DOTALL)
YAML = re.compile(r"```yaml\n(.*?)```", re.DOTALL)


def commands(page: str) -> list[str]:
    return COMMAND.findall((DOCS / page).read_text())


def works(command: str, folder: Path) -> None:
    done = run(command, folder)
    missed = done.returncode == 4 and is_disturbed(done.stdout)
    assert done.returncode == 0 or missed, f"{command}\n{done.stdout}{done.stderr}"


@pytest.mark.slow
def test_the_own_model_guide_works_from_file_to_peak(tmp_path: Path) -> None:
    shutil.copy(MODELS_DIR / "digits.onnx", tmp_path / "net.onnx")
    text = (DOCS / "own-model.md").read_text()
    digits = DigitsDataset(
        DatasetSetup(inputs=(TensorSpec("image", "float32", ("batch", 1, 8, 8)),))
    )
    every = range(len(digits))
    digits.load(every)
    labels = np.array([digits.label(index) for index in every])
    given = {"images": np.array(digits.batch(every).inputs["image"]), "labels": labels}
    (code,) = PYTHON.findall(text)
    exec(code.replace('"samples.npz"', repr(str(tmp_path / "samples.npz"))), given)
    (changes,) = [block for block in YAML.findall(text) if "\nslo: " in block]
    for command in commands("own-model.md"):
        if "net.yaml" in command and "labels" not in (tmp_path / "net.yaml").read_text():
            written = yaml.safe_load((tmp_path / "net.yaml").read_text())
            (tmp_path / "net.yaml").write_text(
                yaml.safe_dump(written | yaml.safe_load(changes)) + "# labels\n"
            )
        works(command, tmp_path)


@pytest.mark.slow
def test_a_job_finds_the_regression_of_the_example(tmp_path: Path) -> None:
    shutil.copytree(DOCS.parent / "examples", tmp_path / "examples")
    (tmp_path / "bench.yaml").write_text("threads: 1\n")
    disturbed = False
    for command in commands("ci.md"):
        done = run(command, tmp_path)
        shown = f"{command}\n{done.stdout}{done.stderr}"
        disturbed |= is_disturbed(done.stdout)
        if "compare results/accepted results/slower" in command:
            assert done.returncode == 6, shown
            assert disturbed or re.search(r"^limit +broken +p50", done.stdout, re.MULTILINE), shown
        else:  # without `--fail-on undecided`, noise alone does not fail the job
            assert done.returncode == 0 or (done.returncode == 4 and disturbed), shown
    assert (tmp_path / "report.xml").is_file()
    assert (tmp_path / "benchmark.json").is_file()


@pytest.mark.slow
def test_the_plug_in_for_a_servers_protocol_measures_a_model(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    (code,) = [c for c in PYTHON.findall((DOCS / "plugins.md").read_text()) if "JsonTensors" in c]
    (tmp_path / "tensors.py").write_text(code)
    (command,) = [c for c in commands("plugins.md") if "JsonTensors" in c]
    with serving("digits", "--backend", "ort") as server:
        url = f"http://127.0.0.1:{server.port}"
        done = run(command.replace("http://127.0.0.1:8000", url) + " --out run", tmp_path)
    assert "accuracy    top1 99.20 %" in done.stdout, done.stderr
    assert done.returncode == 0 or "client-bound" in done.stdout
