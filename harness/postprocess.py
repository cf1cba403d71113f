"""From a backend's outputs to answers: the step a manifest names, applied in the timed part."""

from collections.abc import Callable, Mapping, Sequence
from operator import methodcaller
from typing import NamedTuple

import numpy as np

from harness.errors import ConfigError
from harness.types import Array, Outputs, Step

STEPS: Mapping[str, Callable[[Array], Array]] = {
    "none": lambda rows: rows,
    "argmax": methodcaller("argmax", 1),
}
"""argmax: (n, classes) -> (n,) int64, the answer MLPerf's image classification logs."""

_SMALL = 8192
"""Elements; above it BLAS may use threads for a dot product, which would disturb the run."""


class Postprocess(NamedTuple):
    """answers: outputs -> (n, ...). has_nan: whether those outputs, with their answers, hold NaN."""

    answers: Callable[[Outputs], Array]
    has_nan: Callable[[Outputs, Array], bool]


def postprocessor(steps: Sequence[Step], output: str | None) -> Postprocess:
    """output: which one to use where the backend gives several."""
    apply = STEPS[steps[0].name] if steps else STEPS["none"]

    def answers(outputs: Outputs) -> Array:
        if isinstance(outputs, np.ndarray):
            return apply(outputs)
        if isinstance(outputs, Mapping):
            return apply(np.asarray(_chosen(outputs, output)))
        return apply(np.asarray(outputs))

    return Postprocess(answers, _winner_is_nan if steps and steps[0].name == "argmax" else has_nan)


def _winner_is_nan(outputs: Outputs, answers: Array) -> bool:
    """numpy's argmax stops at the first NaN, so one row's winner tells for the whole row."""
    if answers.size == 1 and isinstance(outputs, np.ndarray):
        winner = outputs.item(answers.item())
        return bool(winner != winner)  # noqa: PLR0124 - NaN alone
    return has_nan(outputs)


def has_nan(outputs: Outputs, _answers: Array | None = None) -> bool:
    """One pass over the outputs: a sum of squares, or a maximum, is NaN where a term is."""
    if isinstance(outputs, np.ndarray):
        if outputs.dtype.kind not in "fc":
            return False
        if outputs.size <= _SMALL:  # a maximum costs microseconds, this a tenth of it
            flat = outputs.ravel()
            total = flat.dot(flat)
        else:
            total = outputs.max()
        # Complex infinities make a NaN square, too: look again.
        return bool(total != total) and bool(np.isnan(outputs).any())  # noqa: PLR0124 - NaN alone
    arrays = outputs.values() if isinstance(outputs, Mapping) else outputs
    return any(has_nan(np.asarray(a)) for a in arrays)


def _chosen(outputs: Mapping[str, Array], name: str | None) -> Array:
    if name is None:
        return next(iter(outputs.values()))
    if name not in outputs:
        raise ConfigError(
            f"the manifest's output {name!r} is not among the model's: {', '.join(outputs)}"
        )
    return outputs[name]
