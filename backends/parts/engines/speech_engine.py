"""The base class for speech engines, which run the feature extraction, the encoder and the decoder, and choose the
tokens.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from harness.backends.parts.engines.engine import Engine
from harness.errors import ConfigError
from harness.types import Array, BackendSetup, TensorSpec

MOST_SAMPLES = 480_000
"""Maximum number of audio samples: 30 s at 16 kHz, the window of Whisper's encoder. Longer audio needs several windows,
with time stamps between them.
"""


class SpeechEngine(Engine):
    """A subclass implements TranscribesSpeech (harness/types.py)."""

    question: ClassVar[TensorSpec] = TensorSpec("sound", "float32", (None, None))
    end: tuple[int, ...]
    """The tokens that end an answer; known once the model is loaded."""

    def __init__(self, setup: BackendSetup) -> None:
        super().__init__(setup)
        if setup.transcribing is None:
            raise ConfigError(
                f"backend {self.name!r} transcribes speech, and needs a manifest with `transcription`: write one with "
                f"`init --model {self._path}`"
            )
        self._about = setup.transcribing
        lengths = [
            size for spec in setup.inputs for size in spec.shape[1:] if isinstance(size, int)
        ]
        if max(lengths, default=0) > MOST_SAMPLES:
            raise ConfigError(
                f"backend {self.name!r} transcribes at most 30 s ({MOST_SAMPLES:,} samples), but the input takes "
                f"{max(lengths):,}: shorten the audio with the manifest's step `audio`"
            )

    @abstractmethod
    def listen(self, key: int, sound: Array, most: int) -> None:
        """Schedules an answer to start at the next step."""

    @abstractmethod
    def text(self, tokens: Sequence[int]) -> str:
        """Returns the text of an answer's tokens, which do not include the end token."""
