"""Writes small ONNX files with states, constants and unusual batch axes, and computes sequences with ONNX Runtime
alone.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from onnx import helper

from harness.types import Array
from tests.builders.models.odd_files import FLOAT, INT64, value, write

FEATURES, HIDDEN, ANSWERS = 6, 5, 3


def _weights(gates: int) -> dict[str, Array]:
    random = np.random.default_rng(7)

    def drawn(*shape: int) -> Array:
        return random.normal(size=shape).astype(np.float32)

    return {
        "w": drawn(1, gates * HIDDEN, FEATURES),
        "r": drawn(1, gates * HIDDEN, HIDDEN),
        "b": drawn(1, 2 * gates * HIDDEN),
        "out": drawn(HIDDEN, ANSWERS),
        "first": np.array([0]),
    }


def lstm(
    path: Path, batch: int | str | None = "batch", names: tuple[str, ...] = ("h0", "c0", "hn", "cn")
) -> Path:
    """Writes a model that maps a frame x [batch, 6] and the states [1, batch, 5] to y [batch, 3] and new states."""
    h, c, hn, cn = names
    nodes = [
        helper.make_node("Unsqueeze", ["x", "first"], ["frame"]),
        helper.make_node(
            "LSTM", ["frame", "w", "r", "b", "", h, c], ["", hn, cn], hidden_size=HIDDEN
        ),
        helper.make_node("Squeeze", [hn, "first"], ["top"]),
        helper.make_node("MatMul", ["top", "out"], ["y"]),
    ]
    states = (1, batch, HIDDEN)
    inputs = [value("x", (batch, FEATURES)), value(h, states), value(c, states)]
    outputs = [value("y", (batch, ANSWERS)), value(hn, states), value(cn, states)]
    return write(path, nodes, inputs, outputs, _weights(4))


def gru_time_major(path: Path, batch: int | str | None = "b", time: int | str | None = "t") -> Path:
    """Writes a model that maps a frame x [time, batch, 6] and the state [1, batch, 5] to y [time, 1, batch, 5] and a
    new state.
    """
    node = helper.make_node(
        "GRU", ["x", "w", "r", "b", "", "state"], ["y", "stateN"], hidden_size=HIDDEN
    )
    inputs = [value("x", (time, batch, FEATURES)), value("state", (1, batch, HIDDEN))]
    outputs = [value("y", (time, 1, batch, HIDDEN)), value("stateN", (1, batch, HIDDEN))]
    return write(path, [node], inputs, outputs, _weights(3))


def state_first(path: Path) -> Path:
    """Writes a model whose state memory [batch, 6] has the batch axis first; the output is the sum of all frames so
    far.
    """
    node = helper.make_node("Add", ["x", "memory_in"], ["memory_out"])
    answer = helper.make_node("ReduceSum", ["memory_out", "one"], ["y"])
    inputs = [value("x", ("batch", FEATURES)), value("memory_in", ("batch", FEATURES))]
    outputs = [value("y", ("batch", 1)), value("memory_out", ("batch", FEATURES))]
    return write(path, [node, answer], inputs, outputs, {"one": np.array([1])})


def counting(path: Path) -> Path:
    """Writes a model with a state [batch, 6] and a frame count [1]; the output is the mean of all frames so far."""
    nodes = [
        helper.make_node("Add", ["x", "memory_in"], ["memory_out"]),
        helper.make_node("Add", ["frame_in", "one"], ["frame_out"]),
        helper.make_node("Div", ["memory_out", "frame_out"], ["y"]),
    ]
    rows = ("batch", FEATURES)
    inputs = [value("x", rows), value("memory_in", rows), value("frame_in", (1,))]
    outputs = [value("y", rows), value("memory_out", rows), value("frame_out", (1,))]
    return write(path, nodes, inputs, outputs, {"one": np.ones(1, np.float32)})


def scaled(path: Path) -> Path:
    """Writes a model that multiplies x [batch, 4] by a scalar."""
    nodes = [
        helper.make_node("Cast", ["sample_rate"], ["factor"], to=FLOAT),
        helper.make_node("Mul", ["x", "factor"], ["y"]),
    ]
    inputs = [value("x", ("batch", 4)), value("sample_rate", (), INT64)]
    return write(path, nodes, inputs, [value("y", ("batch", 4))])


def time_major(path: Path, batch: str = "batch") -> Path:
    """Writes a model that sums x [time, batch, 6] over time into y [batch, 6]."""
    node = helper.make_node("ReduceSum", ["x", "first"], ["y"], keepdims=0)
    inputs = [value("x", (4, batch, FEATURES))]
    weights = {"first": np.array([0])}
    return write(path, [node], inputs, [value("y", (batch, FEATURES))], weights)


def detections(path: Path) -> Path:
    """Writes a model that returns the positions [found, 2] of the positive numbers in x [batch, 8]."""
    nodes = [
        helper.make_node("Greater", ["x", "zero"], ["is_positive"]),
        helper.make_node("NonZero", ["is_positive"], ["columns"]),
        helper.make_node("Transpose", ["columns"], ["places"]),
    ]
    outputs = [value("places", ("found", 2), INT64)]
    return write(path, nodes, [value("x", ("batch", 8))], outputs, {"zero": np.float32(0)})


def step_by_step(path: Path, frames: Array, states: Mapping[str, tuple[str, Array]]) -> Array:
    """Returns the first output for each frame of one sequence, computed with direct calls of ONNX Runtime.

    frames: the inputs x (frames, ...) as stored in the file. states: maps an input to its output and initial value.
    """
    import onnxruntime as ort

    session: Any = ort.InferenceSession(str(path))
    names = [port.name for port in session.get_outputs()]
    held = {name: start for name, (_, start) in states.items()}
    answers = []
    for frame in frames:
        outputs = dict(zip(names, session.run(names, {"x": frame, **held}), strict=True))
        held = {name: outputs[output] for name, (output, _) in states.items()}
        answers.append(outputs[names[0]])
    return np.stack(answers)
