"""The base class of speech engines: they compute features, encoder and decoder of a model, and choose its tokens."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence

from harness.backends.parts.framework import FrameworkBackend
from harness.errors import ConfigError
from harness.types import Array, BackendSetup, Outputs, TensorSpec

MOST_SAMPLES = 480_000
"""30 s at 16 kHz, the window of Whisper's encoder. A longer sound needs several windows, with time stamps between them."""

_SOUND = TensorSpec("sound", "float32", (None, None))


class SpeechEngine(FrameworkBackend):
    """One model on one engine. A subclass loads it and listens (harness/types.py, TranscribesSpeech)."""

    end: tuple[int, ...]

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        if setup.transcribing is None:
            raise ConfigError(
                f"backend {self.name!r} transcribes speech: name a manifest with `transcription` "
                "(docs/manifest.md#models-of-speech)"
            )
        self._about = setup.transcribing
        lengths = [
            size for spec in setup.inputs for size in spec.shape[1:] if isinstance(size, int)
        ]
        if max(lengths, default=0) > MOST_SAMPLES:
            raise ConfigError(
                f"backend {self.name!r} transcribes at most 30 s, {MOST_SAMPLES:,} samples, but the input takes "
                f"{max(lengths):,}: cut the sound by the step `audio` of the manifest"
            )

    def _load(self) -> tuple[tuple[TensorSpec, ...], tuple[str, ...]]:
        self._open()
        return (_SOUND,), ()

    @abstractmethod
    def _open(self) -> None:
        """Loads the model and sets `end`."""

    def _answer(self, inputs: Mapping[str, Array]) -> Outputs:
        raise ConfigError(
            f"backend {self.name!r} has no batches: {len(inputs)} arrays were passed to it"
        )

    @abstractmethod
    def listen(self, key: int, sound: Array, most: int) -> None:
        """Lets an answer join at the next step."""

    @abstractmethod
    def step(self) -> Sequence[tuple[int, int]]:
        """Returns the key and the new token of each answer that has one."""

    @abstractmethod
    def leave(self, key: int) -> None:
        """Forgets an active answer."""

    @abstractmethod
    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of an answer's tokens without its end."""
