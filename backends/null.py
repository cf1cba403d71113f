"""Returns zeros immediately, so that all remaining time is the harness's overhead."""

from collections.abc import Mapping
from typing import Self

import numpy as np

from harness.errors import ConfigError
from harness.types import Array, Backend, BackendSetup, Batch


class NullBackend:
    """Reads no model file. Every answer is the same row of zeros."""

    def __init__(self, setup: BackendSetup) -> None:
        asked = (setup.provider, setup.provider_options, setup.options)
        if any(asked) or setup.device != "cpu":
            raise ConfigError(
                "backend 'null' takes only --device cpu, no --provider and no --backend-option"
            )
        self._answers = np.zeros((setup.max_batch, 10), np.float32)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def infer(self, batch: Batch) -> Array:
        return self._answers[: batch.size]

    def describe(self) -> Mapping[str, object]:
        return {"framework": "none", "device": "none", "precision": "none", "threads": 0}


_: type[Backend] = NullBackend
