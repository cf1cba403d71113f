"""The benchmark whisper in this process: complete rehearsals on each speech engine, with a Whisper of random weights."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from harness.cli.main import main
from harness.core import registry
from harness.models.generation.speech import SpeechBackend
from harness.models.manifest.model import MODELS_DIR
from harness.models.manifest.schema import Transcription
from harness.types import BackendSetup, Batch
from tests.builders.submit import generated_data as made

pytest.importorskip("onnx")
pytest.importorskip("whisper_normalizer")
from tests.builders.models import whisper

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("real_runs")]

CLIPS, MOST = 12, 12
WRITERS: Mapping[str, tuple[str, Callable[[Path], Path]]] = {
    "ort-whisper": ("genai-whisper", whisper.write_genai),
    "openvino-whisper": ("openvino-whisper", whisper.write_openvino),
}


@pytest.fixture(params=[*WRITERS])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    entry = registry.BACKENDS[name]
    if not entry.installed:
        pytest.skip(f"extra {entry.extra!r} is not installed")
    return name


def manifest(folder: Path, engine: str, **changes: Any) -> Path:
    """Writes the model and the shipped manifest adapted to it; returns the manifest."""
    kind, write = WRITERS[engine]
    content = yaml.safe_load((MODELS_DIR / "whisper.yaml").read_text())
    content["files"] = {kind: {"path": write(folder / "model").name}}
    content["transcription"]["max_tokens"] = MOST
    path = folder / "whisper.yaml"
    path.write_text(yaml.safe_dump({**content, **changes}))
    return path


def data(folder: Path, engine: str, model: Path, clips: int = CLIPS) -> list[int]:
    """Writes clips whose transcripts are the engine's answers; returns the number of tokens in each answer."""
    tokens = []
    setup = BackendSetup(model=model.parent / "model", model_name="whisper")
    about = Transcription(language="en", max_tokens=MOST)
    with SpeechBackend(registry.load("backend", engine), about, setup) as backend:

        def heard(sound: np.ndarray) -> str:
            row = np.zeros((1, 480_000), np.float32)
            row[0, : len(sound)] = sound
            (one,) = backend.begin(Batch(1, {"audio": row}))
            while not backend.generator.is_idle:
                backend.generator.step()
            tokens.append(len(one.tokens))
            return backend.answer(one).tobytes().decode()

        made.speech(folder, clips, 0.6, heard)
    return tokens


@pytest.mark.limit_s(900)
def test_whisper_is_rehearsed_from_plan_to_check(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = manifest(tmp_path, engine)
    tokens = data(tmp_path / "data", engine, model)
    work = ["--work", str(tmp_path / "work")]
    words = [
        *("--rehearsal", "--duration", "1s", "--division", "closed", "--submitter", "LabOrg"),
        *("--system", "box", "--category", "datacenter,edge", "--benchmark", "whisper"),
        *("--model", str(model), "--backend", engine, "--data-dir", str(tmp_path / "data")),
    ]
    assert main(["submit", "run", *work, *words]) == 0, capsys.readouterr()
    assert main(["submit", "pack", *work]) == 0, capsys.readouterr()
    tree = tmp_path / "work/tree"
    assert main(["submit", "check", str(tree), "--rehearsal"]) == 0, capsys.readouterr()
    assert main(["submit", "check", str(tree)]) == 4
    (results,) = tree.glob("closed/*/results/*/whisper")
    assert {path.name for path in results.iterdir()} == {"Offline"}
    text = (results / "Offline/accuracy/accuracy.txt").read_text()
    assert text.startswith("Word Error Rate: 0.0000%, accuracy=100.0000%")
    counted = result(tmp_path / "work/runs/Offline-performance/attempt-1")["tokens"]
    assert min(tokens) <= counted["output"] / counted["answers"] <= max(tokens)


def test_a_run_measures_the_tokens_of_each_answer(engine: str, tmp_path: Path) -> None:
    model = manifest(tmp_path, engine)
    tokens = data(tmp_path / "data", engine, model)
    words = [
        *("--scenario", "single-stream", "--model", str(model), "--backend", engine, "--quiet"),
        *("--data-dir", str(tmp_path / "data"), "--queries", str(CLIPS), "--mode", "both"),
        *("--slo", "ttft:p99=60s", "--out", str(tmp_path / "out")),
    ]
    assert main(words) == 4
    found = result(tmp_path / "out")
    (reason,) = found["reasons"]
    assert "12 first tokens are too few" in reason["text"]
    assert found["accuracy"]["value"] == 0
    assert found["accuracy"]["details"]["word_accuracy"] == 100
    counted = found["tokens"]
    assert min(tokens) <= counted["output"] / counted["answers"] <= max(tokens)
    assert counted["loadgen"]["ttft_ns"]["p50"] > 0


def result(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_verbs_for_batches_or_prompts_refuse_speech(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(manifest(tmp_path, engine))
    given = ["--model", model, "--backend", engine]
    for words, why in (
        (["serve", model, "--backend", engine], "transcribes speech, which `serve` does not support"),
        (["cold", model, "--backend", engine], "token by token"),
        (["--scenario", "offline", *given, "--backend-option", "processes=on"], "drop --backend-option processes=on"),
        (["--scenario", "offline", "--model", "tinylm", "--backend", engine], "no file"),
    ):  # fmt: skip
        assert main(words) == 2, words
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("harness: ")
        assert why in line, words


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"transcription": {"language": "English"}}, "transcription.language"),
        ({"generation": {"context": 9, "vocabulary": 9}}, "inputs"),
        ({"transcription": {"max_tokens": 0}}, "transcription.max_tokens"),
        (
            {"inputs": [{"name": "audio", "dtype": "float32", "shape": ["batch", 80, 3000]}]},
            "has one input, the sound",
        ),
    ],
)
def test_a_wrong_transcription_is_refused_in_one_line(
    changes: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content = yaml.safe_load((MODELS_DIR / "whisper.yaml").read_text())
    (tmp_path / "whisper.yaml").write_text(yaml.safe_dump({**content, **changes}))
    assert main(["--scenario", "offline", "--model", str(tmp_path / "whisper.yaml")]) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "whisper.yaml" in one]
    assert why in line
