"""The warm-up refuses a model whose outputs cannot be answers, and names the output."""

from typing import Any

import numpy as np
import pytest

from harness.errors import ConfigError, PluginUnavailable
from harness.models.steps.postprocess import postprocessor
from harness.run.measured.answerer import Answerer
from harness.types import Array, Batch


class Model:
    def __init__(self, output: Array) -> None:
        self.output = output

    def batch(self, indices: list[int]) -> Batch:
        return Batch(len(indices), {})

    def infer(self, _: Batch) -> Array:
        return self.output

    def outputs(self) -> tuple[str, ...]:
        return ("y", "z")


class Lost(Model):
    """A dataset whose files were deleted."""

    def batch(self, indices: list[int]) -> Batch:
        raise OSError(f"no sample {indices[0]}")


def test_a_dataset_that_raises_is_named() -> None:
    """Bug: the message was "warm-up of backend 'ort' raised OSError"."""
    model: Any = Lost(np.zeros(2))
    with pytest.raises(PluginUnavailable) as caught:
        Answerer(model, model, postprocessor((), None)).answer([4, 5])
    assert str(caught.value) == "batch() of the dataset Lost raised OSError: no sample 4"


@pytest.mark.parametrize(
    ("output", "line"),
    [
        (
            np.array(1.0),
            (
                "output 'y' of the model has the shape [], which has no batch: "
                "state `batch_axis: none` for it in a manifest to answer each sample alone, "
                "or export the model with a batch dimension"
            ),
        ),
        (
            np.array([["a"], ["b"]], object),
            (
                "output 'y' of the model contains strings or other objects, but answers must be numbers: convert "
                "them in a manifest with the postprocessing step `hook` (--model FILE.yaml, "
                "docs/manifest.md)"
            ),
        ),
        (
            np.zeros((5, 3)),
            (
                "the model returned 5 rows in the output 'y' for 2 samples: the first dimension of each input and "
                "output must be the batch. If a model returns several rows per sample (detection heads, non-maximum "
                "suppression inside the model), a manifest with `batch_axis: none` for this output takes one sample "
                "at a time, and a manifest with the postprocessing step `hook` combines them into one answer: --model "
                "FILE.yaml, docs/manifest.md"
            ),
        ),
        (
            np.array([[1.0, np.nan]] * 2),
            (
                "the model's outputs contain NaN or +Inf: correct the model, or pass a --dataset for which the model "
                "has answers"
            ),
        ),
    ],
)
def test_an_output_that_holds_no_answers_is_named(output: Array, line: str) -> None:
    """Bug: the message was "raised TypeError: len() of unsized object", with status 3."""
    model: Any = Model(output)
    with pytest.raises(ConfigError) as caught:
        Answerer(model, model, postprocessor((), None)).answer([0, 1])
    assert str(caught.value) == line
