"""From a backend's outputs to answers: the step a manifest names, applied in the timed part."""

from collections.abc import Callable, Mapping

import numpy as np

from harness.errors import ConfigError
from harness.types import Array, Outputs

Postprocess = Callable[[Outputs], Array]

STEPS: Mapping[str, Callable[[Array], Array]] = {
    "none": lambda rows: rows,
    "argmax": lambda rows: rows.argmax(axis=1),
}
"""argmax: (n, classes) -> (n,) int64, the answer MLPerf's image classification logs."""


_SMALL = 8192
"""Elements; above it BLAS may use threads for a dot product, which would disturb the run."""


def postprocessor(step: str, output: str | None) -> Postprocess:
    """outputs -> (n, ...) answers. output: which one to use where the backend gives several."""
    apply = STEPS[step]

    def postprocess(outputs: Outputs) -> Array:
        if isinstance(outputs, np.ndarray):
            return apply(outputs)
        if isinstance(outputs, Mapping):
            return apply(np.asarray(_chosen(outputs, output)))
        return apply(np.asarray(outputs))

    return postprocess


def has_nan(outputs: Outputs) -> bool:
    """One pass over the outputs: a sum is NaN where any of its terms is."""
    if isinstance(outputs, np.ndarray):
        if outputs.dtype.kind not in "fc":
            return False
        if outputs.size <= _SMALL:  # a sum costs microseconds, this a tenth of it
            flat = outputs.ravel()
            total = flat.dot(flat)
        else:
            total = outputs.sum()
        # Infinities of both signs make a NaN sum, too: look again.
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
