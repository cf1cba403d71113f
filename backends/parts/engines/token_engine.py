"""The base class for token engines, which keep a language model's cache and choose the tokens themselves."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from harness.backends.parts.engines.engine import Engine
from harness.errors import ConfigError
from harness.types import BackendSetup, TensorSpec


class TokenEngine(Engine):
    """A subclass implements GeneratesTokens (harness/types.py)."""

    question: ClassVar[TensorSpec] = TensorSpec("prompt", "string", (None,))

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        if setup.decoding is None:
            raise ConfigError(
                f"backend {self.name!r} answers prompts token by token, and needs a manifest with `generation`: write "
                f"one with `init --model {self._path}`"
            )
        self._decoding = setup.decoding

    @abstractmethod
    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        """Schedules an answer to start at the next step."""
