"""Finds out whether a runtime really computes in a requested number type, because some runtimes accept the request but
keep float32.
"""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from harness.errors import ConfigError
from harness.types import Array, Outputs, TensorSpec

_OPEN_SIZE = 8
"""A dimension that the model leaves open gets this size."""

Answer = Callable[[Mapping[str, Array]], Outputs]


def check_differs(
    option: str, title: str, inputs: Sequence[TensorSpec], exact: Answer, reduced: Answer
) -> None:
    """Raises a ConfigError if both answers to the same noise are identical bit by bit, because the option then has no
    effect.

    exact: answers in float32. reduced: answers with the option, such as `precision=f16`.
    """
    batch = noise(inputs)
    if all(map(np.array_equal, _arrays(exact(batch)), _arrays(reduced(batch)))):
        raise ConfigError(
            f"--backend-option {option}: {title} computes in float32 on this CPU: drop the option"
        )


def noise(inputs: Sequence[TensorSpec]) -> dict[str, Array]:
    """Returns one sample of noise for each input; integers are 0, because every lookup table has a row 0."""
    random = np.random.default_rng(0)
    batch: dict[str, Array] = {}
    for name, dtype, shape in inputs:
        first = shape[0] if shape and isinstance(shape[0], int) else 1
        sizes = (first, *(s if isinstance(s, int) else _OPEN_SIZE for s in shape[1:]))
        is_real = np.dtype(dtype).kind == "f"
        batch[name] = (random.standard_normal(sizes) if is_real else np.zeros(sizes)).astype(dtype)
    return batch


def _arrays(outputs: Outputs) -> list[Array]:
    if isinstance(outputs, Mapping):
        return list(outputs.values())
    return list(outputs) if isinstance(outputs, list | tuple) else [np.asarray(outputs)]
