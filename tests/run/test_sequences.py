"""Complete runs of models with states, constants and other batch axes, from `init` to the verdict."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from harness.results.recheck import check
from tests.builders.models import recurrent_nets as nets
from tests.builders.refusals import refused
from tests.faults.command import result, run
from tests.models.sequences.test_sequences import LSTM_STATES

QUICK = ("--duration", "1s", "--no-report")


def described(model: Path, *changes: tuple[str, str]) -> Path:
    """Returns the manifest that `init` writes, with some lines replaced."""
    manifest = model.with_suffix(".yaml")
    done = run("init", "--model", str(model))
    assert done.status == 0, done.said
    text = manifest.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    manifest.write_text(text)
    return manifest


def measured(out: Path, *words: str | Path) -> dict[str, Any]:
    done = run(*map(str, words), *QUICK, "--out", str(out))
    assert done.status == 0, done.said + done.printed
    assert check(out) == []
    return result(out)


def test_an_unknown_model_with_a_state_runs_by_init_alone(tmp_path: Path) -> None:
    manifest = described(nets.lstm(tmp_path / "net.onnx"))
    found = measured(tmp_path / "out", "--scenario", "single-stream", "--model", manifest)
    assert found["verdict"] == "VALID"
    assert found["backend_description"]["states"] == ["h0", "c0"]
    assert "real_time" not in found


@pytest.mark.slow
@pytest.mark.parametrize("words", ["multi-stream", "server --slo p99=60s", "offline"])
def test_every_scenario_takes_sequences(words: str, tmp_path: Path) -> None:
    manifest = described(nets.lstm(tmp_path / "net.onnx"))
    found = measured(tmp_path / "out", "--scenario", *words.split(), "--model", manifest)
    assert found["verdict"] == "VALID"


@pytest.mark.slow
def test_real_time_factor_covers_all_frames(tmp_path: Path) -> None:
    manifest = described(nets.lstm(tmp_path / "net.onnx"), ("# frame_period_ms", "frame_period_ms"))
    found = measured(tmp_path / "out", "--scenario", "offline", "--model", manifest)["real_time"]
    assert found["frames"] % 32 == 0
    assert found["streams"] is None
    assert 0 < found["real_time_factor"] < 1


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, "batch"])
def test_streams_in_real_time_answer_as_whole_sequences(batch: int | str, tmp_path: Path) -> None:
    path = nets.lstm(tmp_path / "net.onnx", batch)
    starts = LSTM_STATES
    samples = np.random.default_rng(1).normal(size=(30, 9, nets.FEATURES)).astype(np.float32)
    labels = [nets.step_by_step(path, one[:, np.newaxis], starts)[:, 0] for one in samples]
    scores = np.stack(labels)[:, :, 0]
    np.savez(tmp_path / "data.npz", x=samples, labels=(scores > np.median(scores)).astype(np.int64))
    manifest = described(
        path,
        ("frames: 32", "frames: 9"),
        ("# frame_period_ms: 32.0", "frame_period_ms: 5.0"),
        ("dataset: synthetic", "dataset: npz"),
        ("# accuracy: {metric: top1, target: 75.0}", "accuracy: {metric: auc, target: 0.4}"),
    )
    words = ("--scenario", "server", "--streams", "6", "--model", manifest, "--slo", "p50=1s")
    found = measured(tmp_path / "out", *words, "--data-dir", tmp_path / "data.npz")
    assert found["verdict"] == "VALID"
    assert found["arrivals"]["streams"] == 6
    assert found["real_time"]["frames"] == found["queries"]["samples_answered"]
    assert found["accuracy"]["compared"]["answers"] > 20
    assert "streams in real time" in " ".join(found["not_for_submission"])


@pytest.mark.slow
def test_rows_that_follow_the_data_are_measured_alone(tmp_path: Path) -> None:
    manifest = described(nets.detections(tmp_path / "net.onnx"))
    words = ("--scenario", "offline", "--max-batch", "8", "--model", str(manifest))
    done = run(*words, *QUICK, "--out", str(tmp_path / "out"))
    assert done.status == 0, done.said
    assert (
        "the number of rows of output 'places' depends on the data, so each sample is answered alone"
        in done.said
    )
    assert result(tmp_path / "out")["queries"]["mean_batch"] == 1


def test_streams_without_a_period_are_refused(tmp_path: Path) -> None:
    manifest = described(nets.lstm(tmp_path / "net.onnx"))
    (line,) = refused("--scenario", "server", "--streams", "2", "--model", manifest)
    assert line == (
        "--streams needs a model whose frames come in real time, but the manifest of 'net' has no "
        "`frame_period_ms`: add it (docs/streams.md), or drop --streams"
    )


def test_a_server_cannot_take_states(tmp_path: Path) -> None:
    manifest = described(nets.lstm(tmp_path / "net.onnx"))
    words = ("--backend-option", "processes=on", "--duration", "1s", "--out", tmp_path / "out")
    done = run("--scenario", "offline", "--model", str(manifest), *map(str, words))
    assert done.status == 2
    assert done.said.splitlines()[-1] == (
        "harness: model 'net' has states, constants or other batch axes, which the harness feeds only to a model in "
        "its own process: drop --backend-option processes=on"
    )
