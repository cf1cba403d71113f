"""The base class for engines that answer token by token. The harness runs such an engine step by step, because the
engine does not accept batches.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from harness.backends.parts.framework import FrameworkBackend
from harness.errors import ConfigError
from harness.types import Array, Outputs, TensorSpec


class Engine(FrameworkBackend):
    """One model on one engine. A subclass loads the model and implements the method that starts an answer
    (harness/types.py).
    """

    question: ClassVar[TensorSpec]
    """The only input of the model. Each row of this input gets an answer."""

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._open()
        return (self.question,), ()

    @abstractmethod
    def _open(self) -> None:
        """Loads the model."""

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        raise ConfigError(
            f"backend {self.name!r} does not take batches, but got {len(inputs)} arrays"
        )

    @abstractmethod
    def step(self) -> Sequence[tuple[int, int]]:
        """Returns the key and the new token of each answer that received a token."""

    @abstractmethod
    def leave(self, key: int) -> None:
        """Drops an answer in progress."""
