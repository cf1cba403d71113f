"""The base class of token engines: they keep the cache of a language model and choose its tokens themselves."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from harness.backends.parts.framework import FrameworkBackend
from harness.errors import ConfigError
from harness.types import Array, BackendSetup, Outputs, TensorSpec

_PROMPT = TensorSpec("prompt", "string", (None,))


class TokenEngine(FrameworkBackend):
    """One model on one engine. A subclass loads it and generates (harness/types.py, GeneratesTokens)."""

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        if setup.decoding is None:
            raise ConfigError(
                f"backend {self.name!r} answers prompts token by token: name a manifest with `generation` "
                "(docs/manifest.md#language-models)"
            )
        self._decoding = setup.decoding

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._open()
        return (_PROMPT,), ()

    @abstractmethod
    def _open(self) -> None:
        """Loads the model."""

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        raise ConfigError(
            f"backend {self.name!r} has no batches: {len(inputs)} arrays were passed to it"
        )

    @abstractmethod
    def begin(self, key: int, prompt: Sequence[int], most: int, *, ignores_end: bool) -> None:
        """Lets an answer join at the next step."""

    @abstractmethod
    def step(self) -> Sequence[tuple[int, int]]:
        """Returns the key and the new token of each answer that has one."""

    @abstractmethod
    def leave(self, key: int) -> None:
        """Forgets an active answer."""
