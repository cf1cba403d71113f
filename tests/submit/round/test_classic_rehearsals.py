"""The benchmarks for images, boxes, questions and volumes: short real runs of stand-ins in every scenario, packed and
checked.
"""

from pathlib import Path

import pytest

from harness.cli.main import main

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
from tests.builders.submit.classic_data import MAKERS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_runs")]

SCORES = {
    "resnet": "accuracy=91.667%, good=11, total=12",
    "yolo": "mAP=9",
    "bert": '"f1": 91.66',
    "3d-unet": "Accuracy: mean = 0.9",
}
"""Maps the start of a benchmark's name to a line of accuracy.txt in which one answer is wrong."""

NEEDS = {"yolo": "pycocotools", "bert": "tokenizers"}


@pytest.mark.limit_s(900)
@pytest.mark.parametrize("benchmark", MAKERS)
def test_classic_benchmark_is_rehearsed_from_plan_to_check(
    benchmark: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kind = next(kind for kind in SCORES if benchmark.startswith(kind))
    pytest.importorskip("cv2")
    if kind in NEEDS:
        pytest.importorskip(NEEDS[kind])
    manifest, data = MAKERS[benchmark](tmp_path / "model")
    work = ["--work", str(tmp_path / "work")]
    words = [
        *("--rehearsal", "--duration", "1s", "--division", "closed", "--submitter", "LabOrg"),
        *("--system", "box", "--category", "edge", "--benchmark", benchmark, "--backend", "ort"),
        *("--model", str(manifest), "--data-dir", str(data), "--quiet"),
    ]
    assert main(["submit", "run", *work, *words]) == 0, capsys.readouterr()
    assert main(["submit", "pack", *work]) == 0, capsys.readouterr()
    tree = tmp_path / "work/tree"
    (results,) = tree.glob(f"closed/*/results/*/{benchmark}")
    for scenario in results.iterdir():
        assert SCORES[kind] in (scenario / "accuracy/accuracy.txt").read_text()
    assert main(["submit", "check", str(tree), "--rehearsal"]) == 0, capsys.readouterr()
    assert main(["submit", "check", str(tree)]) == 4
