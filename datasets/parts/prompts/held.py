"""Holds the prompts of a dataset whose input is one string per sample."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.datasets.parts.rows import LoadedRows
from harness.types import Array


class Prompt(NamedTuple):
    """A prompt, which is one line of a file."""

    request: bytes
    """A JSON object with `prompt` (text or token IDs) or `messages`, and with the line's `max_tokens`, if any. `framed`
    in core/formats/prompt_fields.py writes this object.
    """
    size: int
    """Number of token IDs, or number of bytes in the text or in the messages."""
    reference: str | list[float] | None
    model: str = ""
    """Name of the model that must answer; "" for the run's model."""
    is_drawn: bool = False
    """True if the prompt's fields make the server choose tokens at random."""


class HeldPrompts(LoadedRows):
    """A dataset of prompts. All prompts stay in memory; `load` makes rows for the requested prompts."""

    def __init__(self, name: str, prompts: Sequence[Prompt]) -> None:
        """name: name of the model's input."""
        super().__init__(len(prompts))
        self._input, self._prompts = name, prompts

    def load(self, indices: Sequence[int]) -> None:
        self.hold_objects(indices, self._input, (self._prompts[index].request for index in indices))

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.array([self._prompts[i].size for i in indices])

    def label(self, index: int) -> str | list[float] | None:
        return self._prompts[index].reference
