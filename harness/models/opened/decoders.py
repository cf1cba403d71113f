"""Recognises a language model's file with a key-value cache, and writes the manifest lines that only such a model
needs.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from harness.errors import ConfigError, one_line
from harness.models.generation.engine import LOGITS, MASK, POSITIONS, TOKENS
from harness.models.sequences.propose import Proposal
from harness.types import Array, Backend, Batch, TensorSpec

_PAST = "past_key_values."
CONTEXT = 512
"""The value that `init` writes for the maximum number of tokens in prompt and answer together. The value is a guess,
because few files record this number.
"""


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


def lines(vocabulary: int) -> Iterator[str]:
    """Yields the manifest lines that follow `files`."""
    yield "# The file computes one token at a time, with a cache that grows; the harness generates answers with it."
    yield "inputs: [{name: prompt, dtype: string, shape: [batch]}]"
    yield "outputs: [{name: tokens}]"
    yield "generation:"
    yield f"  context: {CONTEXT} # a guess: the maximum number of tokens in a prompt and its answer, as the model card states"
    yield f"  vocabulary: {vocabulary}"
    yield "  # end: [2] # the tokens that end an answer; without this line answers have max_tokens tokens"
    yield "  max_tokens: 32"
    yield "dataset: synthetic-prompts"
    yield "# slo: p99=1s"
    yield "max_batch: 8 # prompts that are processed at once"
