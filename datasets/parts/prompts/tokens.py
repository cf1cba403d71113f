"""Makes prompts of token IDs from a seed. A prompt is made when its sample is loaded."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from harness.datasets.parts import sources
from harness.datasets.parts.rows import LoadedRows
from harness.errors import ConfigError
from harness.types import Array, DatasetSetup

MEMORY_LIMIT_BYTES = 1 << 30
"""A run holds as many prompts in memory as fit into this limit."""

BYTES_PER_TOKEN = 7
"""Size of a token ID below 100,000 in JSON, including a comma and some reserve."""


def input_of(setup: DatasetSetup, dataset: str) -> str:
    """Returns the name of the model's only input, a string. Raises a ConfigError for any other model."""
    sources.check_steps(setup, dataset, ())
    shapes = [(spec.dtype, len(spec.shape)) for spec in setup.inputs]
    if shapes != [("string", 1)]:
        raise ConfigError(
            f"dataset {dataset!r} needs a model with one input of dtype string and shape [batch]: see "
            "docs/datasets.md for its manifest"
        )
    return setup.inputs[0].name


class TokenPrompts(LoadedRows):
    """Prompts of token IDs. Each prompt sets a token limit for its answer, but has no label.

    Sample i depends only on the seed, the lengths and the range of token IDs.
    """

    synthetic = True

    def __init__(
        self,
        setup: DatasetSetup,
        dataset: str,
        input_tokens: Array,
        output_tokens: Array,
        make: Callable[[int], Sequence[Array]],
    ) -> None:
        """make: returns the token IDs of a sample in parts."""
        self._name, self._input = dataset, input_of(setup, dataset)
        self._inputs, self._outputs, self._make = input_tokens, output_tokens, make
        held = np.cumsum(input_tokens * BYTES_PER_TOKEN) <= MEMORY_LIMIT_BYTES
        self.performance_count = max(1, int(held.sum()))
        super().__init__(len(input_tokens))

    def load(self, indices: Sequence[int]) -> None:
        self.hold_objects(indices, self._input, map(self._request, indices))

    def _request(self, index: int) -> bytes:
        ids = ",".join(str(i) for part in self._make(index) for i in part.tolist())
        return b'{"max_tokens":%d,"prompt":[%s]}' % (self._outputs[index], ids.encode())

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.take(self._inputs, indices)

    def label(self, index: int) -> None:
        return None

    def about(self) -> Mapping[str, object]:
        """Returns the part of describe() that all datasets with prompts of token IDs share."""
        return {
            "name": self._name,
            "count": len(self),
            "prompts": "input_ids",
            "unit": "tokens",
            "lengths": summary(self._inputs),
            "max_tokens": summary(self._outputs),
        }


def summary(numbers: Array) -> Mapping[str, object]:
    return {
        "min": int(numbers.min()),
        "mean": round(float(numbers.mean()), 1),
        "median": float(np.median(numbers)),
        "max": int(numbers.max()),
    }
