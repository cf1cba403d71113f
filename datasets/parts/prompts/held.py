"""Holds the prompts of a dataset, whose input is one string per sample."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from harness.datasets.parts.rows import LoadedRows
from harness.types import Array


class Prompt(NamedTuple):
    """One line."""

    request: bytes
    """A JSON object of `max_tokens`, if the line has it, and `prompt` (text or token ids) or `messages`, as `framed`
    of core/formats/prompt_fields.py writes it.
    """
    size: int
    """Token ids, or bytes of the text or of the messages."""
    reference: str | list[float] | None
    model: str = ""
    """The model that answers it; "" for the run's model."""
    is_drawn: bool = False
    """Whether its fields make the server draw tokens at random."""


class HeldPrompts(LoadedRows):
    """Samples that are prompts. All prompts are held in memory; `load` makes rows of the requested ones."""

    def __init__(self, name: str, prompts: Sequence[Prompt]) -> None:
        """name: the model's input."""
        super().__init__(len(prompts))
        self._input, self._prompts = name, prompts

    def load(self, indices: Sequence[int]) -> None:
        self.hold_objects(indices, self._input, (self._prompts[index].request for index in indices))

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.array([self._prompts[i].size for i in indices])

    def label(self, index: int) -> str | list[float] | None:
        return self._prompts[index].reference
