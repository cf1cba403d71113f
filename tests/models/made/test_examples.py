"""build_examples writes real files in each format, each with its intended score."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.core.registry import METRICS
from harness.models.build_examples import COUNT, build
from harness.models.manifest.lookup import load_model
from tests.faults.command import ROOT, only_all, result, run

PAGE = (ROOT / "docs/datasets.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^    python -m harness (.* examples/.*)$", PAGE, re.MULTILINE)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples") / "examples"
    build(folder)
    return folder


def needs(*modules: str) -> Any:
    return [pytest.importorskip(name) for name in modules]


@pytest.mark.parametrize(
    ("name", "metric", "value", "modules"),
    [
        ("librispeech", "wer", 100 / 15, ()),
        ("pairs.csv", "retrieval", 100, ()),
        *only_all(
            ("folder", "top1", 100, ()),
            ("imagenet", "top5", 100, ()),
            ("coco", "map", 100, ("pycocotools",)),
            ("squad", "squad_f1", 100, ("tokenizers",)),
            ("kits", "dice", 1, ()),
            ("texts.csv", "rouge", None, ("tokenizers", "rouge_score")),
            ("vectors.npz", "cosine", None, ()),
            ("pairs.parquet", "retrieval", 100, ("pyarrow",)),
            ("pairs", "retrieval", 100, ("datasets.load",)),
        ),
    ],
)
def test_each_command_on_the_page_reaches_its_score(
    name: str,
    metric: str,
    value: float | None,
    modules: tuple[str, ...],
    examples: Path,
    tmp_path: Path,
) -> None:
    needs(*modules)
    (command,) = [c for c in COMMANDS if c.endswith(f"--data-dir examples/{name}")]
    words = [str(examples.parent / w) if w.startswith("examples/") else w for w in command.split()]
    done = run(*words, "--out", f"{tmp_path}/r")
    assert done.status == 0, done.said + done.printed
    accuracy = result(tmp_path / "r")["accuracy"]
    assert accuracy["metric"] == metric
    if value is not None:
        assert accuracy["value"] == pytest.approx(value)


def test_every_example_has_its_command(examples: Path) -> None:
    manifests = {path.name for path in examples.glob("*.yaml")}
    assert {re.findall(r"examples/(\w+\.yaml)", command)[0] for command in COMMANDS} == manifests
    scored = [load_model(str(examples / name)).accuracy for name in manifests]
    # MLPerf's benchmark metrics have no example, and wer-whisper reads the same answers and labels as wer. The metrics
    # listed here belong to models that are not examples.
    of_others = {"exact_match", "rmse", "auc", "cer", "note_f1"}
    mlperf = {name for name, entry in METRICS.items() if "accuracy.mlperf" in entry.target}
    metrics = {*METRICS} - {"wer-whisper", *of_others, *mlperf}
    assert {declared.metric for declared in scored if declared is not None} == metrics


def test_building_again_changes_nothing(examples: Path, tmp_path: Path) -> None:
    build(tmp_path)
    for path in examples.glob("*.yaml"):
        assert path.read_bytes() == (tmp_path / path.name).read_bytes()
    with np.load(examples / "vectors.npz") as one, np.load(tmp_path / "vectors.npz") as other:
        assert len(one["x"]) == COUNT
        assert np.array_equal(one["x"], other["x"])


@pytest.mark.slow
def test_command_on_the_page_writes_the_examples(tmp_path: Path) -> None:
    assert "    python -m harness.models.build_examples examples\n" in PAGE
    code = "from harness.models.build_examples import main; main()"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}", "x"]
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "x/folder.yaml").is_file()
