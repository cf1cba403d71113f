"""Transcribes audio with a speech engine. The engine runs the model's feature extraction, encoder and decoder."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from harness.errors import ConfigError
from harness.models.generation.backend import TokenBackend
from harness.models.generation.engine import Answering
from harness.models.generation.token_engine import EngineGenerator
from harness.models.manifest.schema import Generation, Transcription
from harness.types import Array, Backend, BackendSetup, TranscribesSpeech, Transcribing


class Heard(Answering):
    """One recording and its transcript so far."""

    __slots__ = ("sound",)

    def __init__(self, sound: Array, most: int) -> None:
        super().__init__((), most)
        self.sound = sound


class SpeechGenerator(EngineGenerator):
    """Passes recordings to a speech engine and receives its tokens."""

    def __init__(self, engine: TranscribesSpeech, most: int, most_sequences: int) -> None:
        """engine: a backend whose context has been entered. most: the maximum number of tokens in an answer."""
        about = Generation(
            context=most + 1, vocabulary=max(engine.end) + 1, end=engine.end, max_tokens=most
        )
        super().__init__(engine, about, most_sequences)

    def room(self, prompt: Sequence[int]) -> int:
        """Returns the maximum number of tokens in a transcript. prompt: always empty."""
        del prompt
        return self._about.max_tokens

    def _begin(self, key: int, one: Answering) -> None:
        assert isinstance(self._engine, TranscribesSpeech)
        assert isinstance(one, Heard)
        self._engine.listen(key, one.sound, one.most)


class SpeechBackend(TokenBackend):
    """Transcribes batches of recordings. A recording is (samples,) float32, and a transcript is UTF-8 text in a uint8
    array.
    """

    def __init__(
        self, cls: Callable[[BackendSetup], Backend], about: Transcription, setup: BackendSetup
    ) -> None:
        """cls: the class of a speech engine."""
        self._most = about.max_tokens
        transcribing = Transcribing(about.language, about.max_tokens)
        super().__init__(cls(replace(setup, transcribing=transcribing)), setup.max_batch)

    def _generator(self, step: Backend) -> SpeechGenerator:
        if not isinstance(step, TranscribesSpeech):
            raise ConfigError(
                "the manifest has `transcription`, which only a speech engine supports: use --backend openvino-whisper or "
                "ort-whisper"
            )
        self._engine = step
        return SpeechGenerator(step, self._most, self.max_batch)

    def _read(self, rows: Array) -> list[Answering]:
        return [Heard(row, self._most) for row in rows]

    def answer(self, one: Answering) -> Array:
        """Returns the transcript without Whisper's leading space. Returns a single space if the model did not recognise
        anything.
        """
        end = self._engine.end
        text = self._engine.text([token for token in one.tokens if token not in end])
        return np.frombuffer((text.strip() or " ").encode(), np.uint8)
