"""Fields of a manifest for states, constants and batch axes: the meaning of combined fields, and the combinations that
are refused.
"""

from typing import Any

import pytest

from harness.errors import ConfigError
from harness.models.manifest.layout import layout_of
from harness.models.manifest.lookup import parse_manifest
from harness.types import TensorSpec

STATE = {"output": "hn", "shape": [2, "batch", 8], "batch_axis": 1}


def manifest(**changes: Any) -> dict[str, Any]:
    return {
        "name": "net",
        "files": {},
        "inputs": [{"name": "x", "dtype": "float32", "shape": ["batch", 4]}],
        "outputs": [{"name": "y"}],
        "dataset": "synthetic",
        **changes,
    }


def test_plain_manifest_has_no_layout() -> None:
    assert layout_of(parse_manifest(manifest(), "test")) is None


def test_a_sample_is_a_sequence_of_frames() -> None:
    layout = layout_of(parse_manifest(manifest(states={"h": STATE}), "test"))
    assert layout is not None
    assert layout.samples() == (TensorSpec("x", "float32", ("batch", "frames", 4)),)
    layout = layout_of(parse_manifest(manifest(states={"h": STATE}, frames=9), "test"))
    assert layout is not None
    assert layout.samples(1) == (TensorSpec("x", "float32", (1, 9, 4)),)


def test_another_axis_of_the_batch_comes_first_in_samples() -> None:
    inputs = [{"name": "x", "dtype": "float32", "shape": ["time", "batch", 4], "batch_axis": 1}]
    layout = layout_of(parse_manifest(manifest(inputs=inputs), "test"))
    assert layout is not None
    assert layout.samples() == (TensorSpec("x", "float32", ("batch", "time", 4)),)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (
            {"inputs": [{"name": "x", "dtype": "float32", "shape": []}]},
            "it must have at least the batch axis: write `batch_axis: none` for an input without a batch",
        ),
        (
            {"inputs": [{"name": "x", "dtype": "float32", "shape": [], "batch_axis": "none"}]},
            "an input without a batch needs a `value`, the number of each element",
        ),
        (
            {"inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 4], "batch_axis": 2}]},
            "batch_axis is 2, but the shape [n, 4] has the axes 0 to 1",
        ),
        (
            {"inputs": [{"name": "x", "dtype": "float32", "shape": ["n", 4], "value": 0}]},
            "every input has a fixed `value`: remove it from at least one input, which then gets the samples",
        ),
        (
            {"states": {"h": {**STATE, "shape": ["layers", "batch", 8]}}},
            "a state must be numeric, and each size except the batch must be a number: change [layers, batch, 8]",
        ),
        ({"states": {"x": STATE}}, "the name 'x' appears twice"),
        ({"states": {"h": {**STATE, "output": "y"}}}, "the name 'y' appears twice"),
        ({"frames": 9}, "field 'frames': only a model with `states` has frames: drop the field"),
        (
            {"frame_period_ms": 32.0},
            "field 'frame_period_ms': only a model with `states` has frames: drop the field",
        ),
    ],
)
def test_fields_that_contradict_are_refused(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        parse_manifest(manifest(**changes), "test")
    assert problem in str(refusal.value)
