"""The shipped silero-vad with the file from its package gives the same answers as a plain loop, and valid runs."""

import importlib.util
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from harness.backends.ort import OrtBackend
from harness.datasets.voice_activity import VoiceActivityDataset
from harness.models.manifest.lookup import load_model
from harness.models.sequences.backend import SequenceBackend
from harness.types import DatasetSetup
from tests.builders.backends import setup
from tests.faults.command import result, run

pytestmark = pytest.mark.slow


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Puts the package's file into the cache; the package is not imported, because it needs torchaudio."""
    package = importlib.util.find_spec("silero_vad")
    if package is None or package.origin is None:
        pytest.skip("silero-vad is not installed")
    place = tmp_path / "cache/mlperf-harness/models/silero-vad/silero_vad_op18_ifless.onnx"
    place.parent.mkdir(parents=True)
    shutil.copy(Path(package.origin).parent / "data/silero_vad_op18_ifless.onnx", place)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return place


def test_answers_are_those_of_a_plain_loop(file: Path) -> None:
    import onnxruntime as ort

    model = load_model("silero-vad")
    assert model.path(("onnx",)) == file
    assert model.layout is not None
    dataset = VoiceActivityDataset(DatasetSetup(inputs=model.inputs))
    dataset.load([0, 1])
    batch = dataset.batch([0, 1])
    made = setup(file, inputs=model.file_inputs, max_batch=2)
    with SequenceBackend(OrtBackend, model.layout, made) as backend:
        answers = np.asarray(backend.infer(batch))
    session: Any = ort.InferenceSession(str(file))
    for sample, ours in zip(batch.inputs["input"], answers, strict=True):
        state, rate = np.zeros((2, 1, 128), np.float32), np.array(16000, np.int64)
        for frame, answer in zip(sample, ours, strict=True):
            feeds = {"input": frame[np.newaxis], "state": state, "sr": rate}
            expected, state = session.run(["output", "stateN"], feeds)
            np.testing.assert_allclose(answer, expected[0], rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize(
    "words",
    [
        ("--scenario", "single-stream"),
        ("--scenario", "server", "--streams", "3", "--slo", "p50=1s"),
    ],
)
@pytest.mark.usefixtures("file")
def test_runs_find_the_voice(words: tuple[str, ...], tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = run(
        *words, "--model", "silero-vad", "--duration", "2s", "--no-report", "--out", str(out)
    )
    assert done.status == 0, done.said + done.printed
    found = result(out)
    assert found["verdict"] == "VALID"
    assert found["accuracy"]["value"] > 0.95
    assert 0 < found["real_time"]["real_time_factor"] < 1
