"""`init` recognises a decoder whose cache grows, and writes a manifest that can answer prompts."""

import shutil
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

from harness.cli.start.init import init
from harness.errors import ConfigError
from harness.models.manifest.lookup import load_model
from harness.models.opened import decoders, engine_files
from harness.models.opened.template import manifest_of
from harness.types import Batch, TensorSpec


def test_the_manifest_of_a_decoder_generates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = load_model("tinylm").path(("onnx",))
    assert source is not None
    path, manifest = tmp_path / "lm.onnx", tmp_path / "lm.yaml"
    shutil.copyfile(source, path)
    assert init(["--model", str(path), "--out", str(manifest)]) == 0
    about = load_model(str(manifest)).generation
    assert about is not None
    assert (about.vocabulary, about.context) == (15, engine_files.CONTEXT)
    shown = capsys.readouterr().out
    options = ("tokens=0:15", "input=16", "output=16")
    assert all(f"--dataset-option {option}" in shown for option in options)


def test_a_file_with_further_inputs_is_not_a_decoder() -> None:
    names = ["input_ids", "past_key_values.0.key", "past_key_values.0.value", "encoder_attention_mask"]  # fmt: skip
    specs = [TensorSpec(name, "int64", (None, None)) for name in names]
    assert decoders.generates(specs[:3])
    assert not decoders.generates(specs)
    assert not decoders.generates(specs[:1])


class Step:
    """Returns the given outputs, or raises an exception if the outputs are None."""

    def __init__(self, outputs: object) -> None:
        self._outputs = outputs

    def infer(self, batch: Batch) -> object:
        assert batch.inputs["past_key_values.0.key"].shape == (1, 2, 0, 4)
        if self._outputs is None:
            raise RuntimeError("no kernel")
        return self._outputs


@pytest.mark.parametrize(
    ("outputs", "problem"),
    [
        (None, r"a step with an empty cache fails \(no kernel"),
        ({"scores": np.zeros((1, 1, 9))}, "it has no output logits"),
        (np.zeros((1, 1, 9)), "it has no output logits"),
    ],
)
def test_a_decoder_that_cannot_step_is_refused_in_one_line(outputs: object, problem: str) -> None:
    specs = [
        TensorSpec("input_ids", "int64", ("batch", "new")),
        TensorSpec("past_key_values.0.key", "float32", ("batch", 2, "past", 4)),
    ]
    step: object = Step(outputs)
    with pytest.raises(ConfigError, match=problem) as refusal:
        decoders.proposal(step, specs)  # type: ignore[arg-type]
    assert "\n" not in str(refusal.value)


def test_a_mask_that_is_passed_on_is_not_a_state(tmp_path: Path) -> None:
    """Bug: the mask of an encoder was mistaken for a state, and its samples for sequences."""
    pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    from tests.builders.models.odd_files import value, write

    ends = [value("x", ("batch", 4)), value("mask", ("batch", 4), TensorProto.BOOL)]
    outputs = [value("y", ("batch", 4)), value("mask_out", ("batch", 4), TensorProto.BOOL)]
    nodes = [
        helper.make_node("Relu", ["x"], ["y"]),
        helper.make_node("Identity", ["mask"], ["mask_out"]),
    ]
    path = write(tmp_path / "m.onnx", nodes, ends, outputs)
    text = manifest_of(path, tmp_path / "m.yaml", {})
    assert "states:" not in text
    assert "name: mask\n" in text
