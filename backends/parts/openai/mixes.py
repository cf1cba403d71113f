"""Spreads prompts over several models on a server, such as LoRA adapters, in proportion to their weights."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate
from typing import Any

import yaml

from harness.errors import ConfigError, one_line

OPTION = "--backend-option models"

_BITS = 64


class Mix:
    """Models with their weights in the mix. A digest of a prompt's content selects the model, so that every run selects
    the same model for a prompt.
    """

    def __init__(self, weights: Mapping[str, float]) -> None:
        self.weights = weights
        self._names: Sequence[str] = [*weights]
        total = sum(weights.values())
        self._ends = [end / total * 2**_BITS for end in accumulate(weights.values())][:-1]

    def model(self, sample: bytes) -> str:
        drawn = int.from_bytes(blake2b(sample, digest_size=_BITS // 8).digest(), "big")
        return self._names[bisect_right(self._ends, drawn)]


def read_mix(text: str) -> Mix:
    """Parses a mapping of names and weights in YAML or JSON, e.g. {base: 3, adapter: 1}."""
    try:
        content: Any = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as e:
        raise ConfigError(f"{OPTION} is neither YAML nor JSON: {one_line(e)}") from e
    if not isinstance(content, dict) or not content:
        raise ConfigError(
            f"{OPTION} is not a mapping of models and weights: write e.g. models='{{base: 3, adapter: 1}}'"
        )
    for name, weight in content.items():
        if not isinstance(name, str) or not name or any(c in name for c in '"\\\n'):
            raise ConfigError(f"{OPTION}: {name!r:.40} is not a model name: quote it")
        known = isinstance(weight, int | float) and not isinstance(weight, bool)
        if not known or not 0 < weight < 1e9:
            raise ConfigError(
                f"{OPTION}: the weight of {name!r:.40} is {weight!r:.20}, but must be above 0"
            )
    return Mix({name: float(weight) for name, weight in content.items()})
