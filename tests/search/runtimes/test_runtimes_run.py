"""Real comparisons of backends: every installed framework, and a slowed-down copy of one framework."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.cli.main import main
from harness.models.manifest.model import MODELS_DIR
from harness.search.runtimes import choice
from tests.stand_ins.chromium import needs_chromium, shown

pytestmark = pytest.mark.slow

SLOWER = """\
import time

from harness.backends.ort import OrtBackend


class Slower(OrtBackend):
    \"\"\"Each answer takes two milliseconds more.\"\"\"

    def infer(self, batch):
        time.sleep(0.002)
        return super().infer(batch)


class Wrong(OrtBackend):
    def infer(self, batch):
        return -super().infer(batch)
"""


def sweep(*arguments: str) -> dict[str, Any]:
    assert main(["sweep", "--threads", "1", "--duration", "300ms", "--out", "r", *arguments]) == 0
    (one,) = json.loads(Path("r/runtimes.json").read_text())["models"]
    return {**one, "by_name": {cell["name"]: cell for cell in one["cells"]}}


def test_slower_copy_is_behind_and_wrong_copy_is_not_ranked(
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxruntime")
    Path("copies.py").write_text(SLOWER)
    found = sweep("--backend", "ort,copies.py:Slower,copies.py:Wrong", "--rounds", "3")
    cells = found["by_name"]
    assert found["ahead"]["best"] == "ort"
    assert cells["copies.py:Wrong"]["state"] == "not ranked"
    assert cells["copies.py:Wrong"]["answers"]["alike"] < 0.5
    slower = cells["copies.py:Slower"]
    assert slower["answers"]["alike"] == 1.0
    assert slower["numbers"]["p50"]["mean"] > 2e6
    printed = capsys.readouterr().out.splitlines()
    assert printed[-1].startswith("ort is ")
    assert printed[-1].endswith(" as fast as copies.py:Slower at p90")


def test_every_installed_backend_gives_equal_answers() -> None:
    pytest.importorskip("onnxruntime")
    installed = choice.readable("digits")
    if len(installed) < 2:
        pytest.skip("one framework is installed")
    found = sweep("--backend", "all", "--model", "digits")
    ranked = {cell["backend"] for cell in found["cells"] if cell["state"] == "ranked"}
    assert ranked == {*installed}
    for cell in found["cells"]:
        if cell["answers"] is not None:
            assert cell["answers"]["alike"] == 1.0
            assert cell["answers"]["samples"] == 64


def test_compare_ranks_the_runs_of_one_file(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("openvino")
    found = sweep("--backend", "ort,openvino", "--model", str(MODELS_DIR / "digits.onnx"))
    sides = [
        ",".join(f"r/{folder}" for folder in found["by_name"][name]["folders"])
        for name in ("ort", "openvino")
    ]
    capsys.readouterr()
    assert main(["compare", *sides]) == 0
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert " at p90" in verdict
    assert "not comparable" not in verdict


@needs_chromium()
def test_page_is_drawn_without_an_error() -> None:
    pytest.importorskip("onnxruntime")
    pytest.importorskip("plotly")
    Path("copies.py").write_text(SLOWER)
    sweep("--backend", "ort,copies.py:Slower", "--rounds", "2")
    page = shown(Path("r/runtimes.html"))
    assert page.console == []
    assert page.drawn == 1
