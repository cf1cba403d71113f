"""Models with states, constants and other batch axes return the same answers as direct calls of ONNX Runtime."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

from harness.backends.ort import OrtBackend
from harness.errors import ConfigError
from harness.models.manifest.layout import layout_of
from harness.models.manifest.lookup import parse_manifest
from harness.models.opened.template import manifest_of
from harness.models.sequences.backend import SequenceBackend
from harness.models.sequences.names import paired
from harness.models.steps.postprocess import by_frame, postprocessor
from harness.types import Array, Batch, Step, TensorSpec
from tests.builders.backends import setup
from tests.builders.models import odd_files
from tests.builders.models import recurrent_nets as nets

START = np.zeros((1, 1, nets.HIDDEN), np.float32)
LSTM_STATES = {"h0": ("hn", START), "c0": ("cn", START)}


def drawn(*shape: int) -> Array:
    return np.random.default_rng(3).normal(size=shape).astype(np.float32)


def content(path: Path) -> dict[str, Any]:
    """Returns the manifest that `init` writes, as a mapping."""
    text = manifest_of(path, path.with_suffix(".yaml"), {})
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


def opened(path: Path, changes: dict[str, Any] | None = None, most: int = 4) -> SequenceBackend:
    manifest = parse_manifest({**content(path), **(changes or {})}, "test")
    layout = layout_of(manifest)
    assert layout is not None
    specs = tuple(one.spec for one in manifest.inputs)
    return SequenceBackend(OrtBackend, layout, setup(path, inputs=specs, max_batch=most))


@pytest.mark.parametrize("batch", ["batch", None, 1, "n", "rows"])
def test_init_finds_the_states_of_an_lstm(batch: int | str | None, tmp_path: Path) -> None:
    found = content(nets.lstm(tmp_path / "m.onnx", batch))
    size = batch if batch == 1 else "batch"
    state = {"dtype": "float32", "shape": [1, size, 5], "batch_axis": 1, "start": 0}
    assert found["states"] == {"h0": {"output": "hn", **state}, "c0": {"output": "cn", **state}}
    assert found["inputs"] == [{"name": "x", "dtype": "float32", "shape": [size, 6]}]
    assert found["outputs"] == [{"name": "y"}]
    assert found["max_batch"] == (1 if batch == 1 else 8)


@pytest.mark.parametrize(
    "names",
    [
        ("h", "c", "hn", "cn"),
        ("initial_h", "initial_c", "Y_h", "Y_c"),
        ("hidden_in", "cell_in", "hidden_out", "cell_out"),
        ("in_state_1", "in_state_2", "out_state_1", "out_state_2"),
        ("stateH", "stateC", "stateHN", "newStateC"),
    ],
)
def test_pair_of_names_is_one_state(names: tuple[str, ...], tmp_path: Path) -> None:
    states = content(nets.lstm(tmp_path / "m.onnx", "batch", names))["states"]
    assert {name: one["output"] for name, one in states.items()} == {
        names[0]: names[2],
        names[1]: names[3],
    }


@pytest.mark.parametrize(("batch", "time"), [("b", "t"), (None, None), ("b", 1)])
def test_init_finds_the_batch_of_a_time_major_gru(
    batch: int | str | None, time: int | str | None, tmp_path: Path
) -> None:
    found = content(nets.gru_time_major(tmp_path / "m.onnx", batch, time))
    (frame,) = found["inputs"]
    assert (frame["shape"], frame["batch_axis"]) == ([1, "batch", 6], 1)
    assert found["outputs"] == [{"name": "y", "batch_axis": 2}]
    assert found["states"]["state"]["batch_axis"] == 1


@pytest.mark.parametrize(
    ("inputs", "outputs", "expected"),
    [
        ("x h0 c0", "y c1 h1", {"h0": "h1", "c0": "c1"}),  # 1: after the frame
        ("x h0 h1", "y h1_out h0_out", {"h0": "h0_out", "h1": "h1_out"}),  # 1: a layer
        ("x h0 h1", "y h1", {"h1": "h1"}),
        ("x s", "y sn", {"s": "sn"}),
        ("x h0", "y h1 hn", {"h0": "hn"}),
    ],
)
def test_numbers_in_names_are_steps_or_layers(
    inputs: str, outputs: str, expected: dict[str, str]
) -> None:
    """Bug: h0 was paired with c1, and c0 with h1, by their order."""
    names = (dict.fromkeys(side.split()) for side in (inputs, outputs))
    assert paired(*names) == expected


def test_init_finds_a_batch_with_a_short_name_after_the_first_axis(tmp_path: Path) -> None:
    """Bug: the first axis was taken for a fixed batch of 4."""
    found = content(nets.time_major(tmp_path / "m.onnx", "b"))
    (x,) = found["inputs"]
    assert (x["shape"], x["batch_axis"]) == ([4, "batch", 6], 1)
    assert found["max_batch"] == 8


def test_init_finds_a_state_with_the_batch_first(tmp_path: Path) -> None:
    found = content(nets.state_first(tmp_path / "m.onnx"))
    assert found["states"]["memory_in"]["output"] == "memory_out"
    assert [one["name"] for one in found["inputs"]] == ["x"]


def test_init_pairs_states_of_one_shape_in_their_order(tmp_path: Path) -> None:
    """Bug: states were not found, because torch.export gives outputs names that do not show their state."""
    names = ("h0", "c0", "output_1", "output_2")
    states = content(nets.lstm(tmp_path / "m.onnx", "batch", names))["states"]
    assert {n: one["output"] for n, one in states.items()} == {"h0": "output_1", "c0": "output_2"}


def test_a_state_without_a_batch_counts_the_frames(tmp_path: Path) -> None:
    """Bug: `init` declared the state as a constant, so the model saw the first frame again and again."""
    path = nets.counting(tmp_path / "m.onnx")
    found = content(path)
    assert found["states"]["frame_in"]["batch_axis"] == "none"
    assert [one["name"] for one in found["inputs"]] == ["x"]
    assert found["max_batch"] == 1
    frames = drawn(1, 4, nets.FEATURES)
    with opened(path) as backend:
        answers = np.asarray(backend.infer(Batch(1, {"x": frames})))
    means = frames[0].cumsum(axis=0) / np.arange(1, 5)[:, np.newaxis]
    np.testing.assert_allclose(answers[0], means, rtol=1e-5)


def test_init_proposes_a_value_for_a_scalar(tmp_path: Path) -> None:
    rate = content(nets.scaled(tmp_path / "m.onnx"))["inputs"][1]
    assert rate == {
        "name": "sample_rate",
        "dtype": "int64",
        "shape": [],
        "batch_axis": "none",
        "value": 16000,
    }


def test_init_finds_rows_that_follow_the_data(tmp_path: Path) -> None:
    found = content(nets.detections(tmp_path / "m.onnx"))
    assert found["outputs"] == [{"name": "places", "batch_axis": "none"}]
    assert found["max_batch"] == 1


def test_a_plain_model_gets_no_batch_axes(tmp_path: Path) -> None:
    found = content(odd_files.two_texts(tmp_path / "m.onnx"))
    assert "states" not in found
    assert all("batch_axis" not in one for one in [*found["inputs"], *found["outputs"]])


def test_sequences_get_the_answers_of_single_steps(tmp_path: Path) -> None:
    path, samples = nets.lstm(tmp_path / "m.onnx"), drawn(3, 7, nets.FEATURES)
    with opened(path) as backend:
        assert backend.signature() == (TensorSpec("x", "float32", ("batch", 32, 6)),)
        answers = np.asarray(backend.infer(Batch(3, {"x": samples})))
    expected = [nets.step_by_step(path, one[:, np.newaxis], LSTM_STATES)[:, 0] for one in samples]
    assert answers.shape == (3, 7, nets.ANSWERS)
    np.testing.assert_allclose(answers, expected, rtol=1e-5, atol=1e-6)


def test_a_batch_leaves_no_state_for_the_next(tmp_path: Path) -> None:
    path, samples = nets.lstm(tmp_path / "m.onnx"), drawn(2, 5, nets.FEATURES)
    with opened(path) as backend:
        first = np.asarray(backend.infer(Batch(1, {"x": samples[:1]})))
        backend.infer(Batch(1, {"x": samples[1:]}))
        again = np.asarray(backend.infer(Batch(1, {"x": samples[:1]})))
    assert np.array_equal(again, first)


def test_the_state_changes_the_answer_of_a_frame(tmp_path: Path) -> None:
    """If the state did not change the answer, these tests could not detect a lost state."""
    same = np.repeat(drawn(1, 1, nets.FEATURES), 4, axis=1)
    with opened(nets.lstm(tmp_path / "m.onnx")) as backend:
        (answers,) = np.asarray(backend.infer(Batch(1, {"x": same})))
    assert all(not np.allclose(answers[0], later) for later in answers[1:])


def test_start_of_a_state_is_its_first_value(tmp_path: Path) -> None:
    path = nets.state_first(tmp_path / "m.onnx")
    states = {"memory_in": {"output": "memory_out", "shape": ["batch", 6], "start": 2.5}}
    with opened(path, {"states": states}) as backend:
        answers = np.asarray(backend.infer(Batch(1, {"x": np.ones((1, 3, 6), np.float32)})))
    assert answers.ravel().tolist() == [21.0, 27.0, 33.0]


def test_a_file_of_one_sequence_pads_nothing_and_takes_one(tmp_path: Path) -> None:
    with opened(nets.lstm(tmp_path / "m.onnx", 1)) as backend:
        assert backend.fixed == 1
        with pytest.raises(ConfigError, match="batches of 1, but 2 samples arrived at once"):
            backend.infer(Batch(2, {"x": drawn(2, 5, 6)}))


def test_a_short_batch_is_padded_to_the_size_of_the_file(tmp_path: Path) -> None:
    path, samples = nets.lstm(tmp_path / "m.onnx", 4), drawn(3, 5, nets.FEATURES)
    with opened(path) as backend:
        answers = np.asarray(backend.infer(Batch(3, {"x": samples})))
    with opened(nets.lstm(tmp_path / "open.onnx")) as backend:
        expected = np.asarray(backend.infer(Batch(3, {"x": samples})))
    assert answers.shape == (3, 5, nets.ANSWERS)
    np.testing.assert_allclose(answers, expected, rtol=1e-5, atol=1e-6)


def test_time_major_inputs_are_fed_with_their_own_axis(tmp_path: Path) -> None:
    path, samples = nets.gru_time_major(tmp_path / "m.onnx"), drawn(2, 5, 1, nets.FEATURES)
    with opened(path) as backend:
        answers = np.asarray(backend.infer(Batch(2, {"x": samples})))
    states = {"state": ("stateN", START)}
    expected = [nets.step_by_step(path, one[:, :, np.newaxis], states) for one in samples]
    assert answers.shape == (2, 5, 1, 1, nets.HIDDEN)
    np.testing.assert_allclose(
        answers, np.moveaxis(np.stack(expected), 4, 2)[:, :, 0], rtol=1e-5, atol=1e-6
    )


def test_a_model_without_states_takes_another_batch_axis(tmp_path: Path) -> None:
    path = nets.time_major(tmp_path / "m.onnx")
    samples = drawn(3, 4, nets.FEATURES)
    with opened(path) as backend:
        assert backend.signature() == (TensorSpec("x", "float32", ("batch", 4, 6)),)
        answers = np.asarray(backend.infer(Batch(3, {"x": samples})))
    np.testing.assert_allclose(answers, samples.sum(axis=1), rtol=1e-5, atol=1e-6)


def test_openvino_takes_a_constant_without_dimensions(tmp_path: Path) -> None:
    """Bug: the message was "array is not writeable"."""
    pytest.importorskip("openvino")
    from harness.backends.openvino import OpenVinoBackend

    manifest = parse_manifest(content(path := nets.scaled(tmp_path / "m.onnx")), "test")
    layout = layout_of(manifest)
    assert layout is not None
    specs = tuple(one.spec for one in manifest.inputs)
    with SequenceBackend(
        OpenVinoBackend, layout, setup(path, inputs=specs, max_batch=2)
    ) as backend:
        answers = np.asarray(backend.infer(Batch(2, {"x": np.ones((2, 4), np.float32)})))
    assert answers.tolist() == [[16000] * 4] * 2


def test_value_of_a_constant_reaches_the_model(tmp_path: Path) -> None:
    path = nets.scaled(tmp_path / "m.onnx")
    inputs = content(path)["inputs"]
    inputs[1]["value"] = 3
    with opened(path, {"inputs": inputs}) as backend:
        assert [spec.name for spec in backend.signature()] == ["x"]
        answers = np.asarray(backend.infer(Batch(2, {"x": np.ones((2, 4), np.float32)})))
    assert answers.tolist() == [[3.0] * 4] * 2


def test_rows_that_follow_the_data_are_one_answer(tmp_path: Path) -> None:
    rows = np.array([[-1, 1, 1, -1, -1, -1, 1, -1]], np.float32)
    with opened(nets.detections(tmp_path / "m.onnx")) as backend:
        assert backend.fixed == 1
        outputs = backend.infer(Batch(1, {"x": rows}))
    answers = postprocessor((), "places").answers(outputs, [0])
    assert answers.shape == (1, None, 2)
    assert np.asarray(answers.rows[0]).tolist() == [[0, 1], [0, 2], [0, 6]]  # type: ignore[union-attr]


def test_steps_of_a_manifest_apply_to_each_frame(tmp_path: Path) -> None:
    samples = drawn(2, 7, nets.FEATURES)
    with opened(nets.lstm(tmp_path / "m.onnx")) as backend:
        outputs = np.asarray(backend.infer(Batch(2, {"x": samples})))
    steps = by_frame(postprocessor((Step("argmax", {}),), "y"))
    answers = np.asarray(steps.answers(outputs, [5, 6]))
    assert np.array_equal(answers, outputs.argmax(axis=2))
    assert not steps.not_finite(outputs, answers)
    outputs[1, 3, 0] = np.nan
    assert steps.not_finite(outputs, answers)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"states": {"h0": {"output": "hn", "shape": [1, "batch", 5], "batch_axis": 1}}},
            "model 'test': the manifest's inputs and states are ['h0', 'x'], but the file's inputs are ['c0'",
        ),
        (
            {"outputs": [{"name": "z"}]},
            "model 'test': the manifest's output 'z' is not among the file's outputs (y, hn, cn)",
        ),
    ],
)
def test_a_manifest_of_another_model_is_refused(
    changes: dict[str, Any], line: str, tmp_path: Path
) -> None:
    path = nets.lstm(tmp_path / "m.onnx")
    with pytest.raises(ConfigError) as refusal, opened(path, changes) as backend:
        backend.infer(Batch(1, {"x": drawn(1, 2, 6)}))
    assert str(refusal.value).startswith(line)


def test_a_state_that_changes_its_shape_is_refused(tmp_path: Path) -> None:
    path = nets.state_first(tmp_path / "m.onnx")
    states = {"memory_in": {"output": "y", "shape": ["batch", 6]}}
    changes = {"states": states, "outputs": [{"name": "memory_out"}]}
    with opened(path, changes) as backend, pytest.raises(ConfigError) as refusal:
        backend.infer(Batch(1, {"x": drawn(1, 2, 6)}))
    assert str(refusal.value) == (
        "model 'test': the state 'memory_in' is float32 [1, 6], but its output 'y' is float32 [1, 1]: "
        "correct `states` in the manifest, because a state keeps its shape and type"
    )
