"""Recognises a language model's file with a key-value cache, and finds its number of tokens."""

from collections.abc import Mapping, Sequence

import numpy as np

from harness.errors import ConfigError, one_line
from harness.models.generation.engine import LOGITS, MASK, POSITIONS, TOKENS
from harness.models.sequences.propose import Proposal
from harness.types import Array, Backend, Batch, TensorSpec

_PAST = "past_key_values."


def generates(specs: Sequence[TensorSpec]) -> bool:
    """Returns whether the file computes one step of a language model, like Optimum's exports."""
    names = {spec.name for spec in specs}
    past = {name for name in names if name.startswith(_PAST)}
    return TOKENS in names and bool(past) and names <= past | {TOKENS, MASK, POSITIONS}


def proposal(backend: Backend, specs: Sequence[TensorSpec]) -> Proposal:
    """Returns the proposed inputs and outputs. Runs one step of the model to find the number of tokens. Raises
    ConfigError if the step fails.
    """
    batch = Batch(1, {spec.name: _given(spec) for spec in specs})
    try:
        outputs = backend.infer(batch)
    except Exception as e:  # the frameworks' exceptions share no base class
        raise ConfigError(
            f"its cache grows with each token, and a step with an empty cache fails ({one_line(e)}): write the "
            "manifest by hand (docs/manifest.md#language-models)"
        ) from e
    if not isinstance(outputs, Mapping) or LOGITS not in outputs:
        raise ConfigError(
            f"its cache grows with each token, but it has no output {LOGITS}: export it with `optimum-cli export onnx`"
        )
    vocabulary = int(np.shape(outputs[LOGITS])[-1])
    return Proposal(inputs=(), axes={}, values={}, states={}, outputs={}, vocabulary=vocabulary)


def _given(spec: TensorSpec) -> Array:
    """Returns the input for a step with one token and an empty cache."""
    if not spec.name.startswith(_PAST):
        return np.full((1, 1), spec.name == MASK, spec.dtype)
    sizes = [1, *(size if isinstance(size, int) else 0 for size in spec.shape[1:])]
    return np.zeros(sizes, spec.dtype)
