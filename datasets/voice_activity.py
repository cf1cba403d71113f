"""Synthesises sequences of sound in which a voice speaks intermittently. A label states for each frame whether the
frame contains speech.

Each sequence alternates between phrases of a synthetic voice (datasets/parts/voice.py) and pauses. Half of the pauses
contain other sounds: noise, beeps, chords, clicks or hum. Quiet room noise is added throughout the sequence.
"""

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from harness.datasets.parts import voice
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import needs_inputs, refuse, refuse_data_dir
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup, TensorSpec, show_shape

COUNT = 40
FRAMES = 150
"""Number of frames in a sequence if the model does not fix the number."""

HOP = 512
"""Number of audio samples from one frame to the next, which is 32 ms."""

_RECIPE = 1
"""Version of the synthesised audio, which is part of the digest. Increase the version with each change to the audio."""


class VoiceActivityDataset(LoadedRows):
    """40 sequences for a model with states. A label is (frames,) 0 or 1; 1 means that at least half of the frame's new
    samples are speech.

    A frame contains 512 new samples at 16 kHz. The new samples follow the end of the previous frame, which fills the
    rest of the model's input.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        refuse_data_dir(setup, "voice-activity")
        if not setup.inputs:
            raise needs_inputs("voice-activity")
        refuse(
            [f"--input-shape {name}: the model's manifest sets the shape" for name in setup.shapes]
        )
        self._input, self._frames, self._width = _sound_input(setup.inputs)
        self._setup = setup
        self._made: dict[int, tuple[Array, Array]] = {}
        super().__init__(COUNT)

    def load(self, indices: Sequence[int]) -> None:
        rows = np.empty((len(indices), self._frames, self._width), np.float32)
        context = self._width - HOP
        for row, index in enumerate(indices):
            sound, _ = self._sound(index)
            padded = np.concatenate([np.zeros(context, np.float32), sound])
            rows[row] = np.lib.stride_tricks.sliding_window_view(padded, self._width)[::HOP]
            self._setup.progress(row + 1, len(indices))
        self.hold(indices, {self._input: rows})

    def label(self, index: int) -> Array:
        _, is_speech = self._sound(index)
        share = is_speech.reshape(self._frames, HOP).mean(axis=1)
        label: Array = (share >= 0.5).astype(np.int64)
        return label

    def _sound(self, index: int) -> tuple[Array, Array]:
        """Returns the sound, (frames * HOP,), and a mask of the samples that are speech."""
        if index not in self._made:
            self._made[index] = self._synthesised(index)
        return self._made[index]

    def _synthesised(self, index: int) -> tuple[Array, Array]:
        total = self._frames * HOP
        random = np.random.RandomState([self._setup.seed & 0xFFFFFFFF, index])
        sound, is_speech = np.zeros(total, np.float32), np.zeros(total, bool)
        at, speaks = int(voice.RATE_HZ * random.uniform(0, 1)), random.random_sample() < 0.5
        while at < total:
            piece = _phrase(random) if speaks else _pause(random)
            end = min(total, at + len(piece))
            sound[at:end] += piece[: end - at]
            is_speech[at:end] = speaks
            at, speaks = end, not speaks
        return sound + voice.background(random, total), is_speech

    def describe(self) -> Mapping[str, object]:
        content = (_RECIPE, COUNT, self._setup.seed, self._frames, self._width)
        return {
            "name": "voice-activity",
            "count": COUNT,
            "source": f"a synthetic voice and other sounds, seed {self._setup.seed}",
            "frames": self._frames,
            "hours": round(COUNT * self._frames * HOP / voice.RATE_HZ / 3600, 4),
            "digest": hashlib.sha256(repr(content).encode()).hexdigest(),
        }


def _phrase(random: np.random.RandomState) -> Array:
    return voice.speech(random, random.randint(3, 10)) * np.float32(random.uniform(0.15, 1.0))


def _pause(random: np.random.RandomState) -> Array:
    samples = int(voice.RATE_HZ * random.uniform(0.4, 2.0))
    if random.random_sample() < 0.5:
        return np.zeros(samples, np.float32)
    return voice.other_sound(random, samples)


def _sound_input(inputs: Sequence[TensorSpec]) -> tuple[str, int, int]:
    """Returns the name of the only input, its number of frames, and the number of samples per frame."""
    first = inputs[0]
    frames, width = first.shape[1:] if len(first.shape) == 3 else (0, 0)
    fits = isinstance(width, int) and width >= HOP and first.dtype == "float32" and frames != 0
    if len(inputs) != 1 or not fits or not isinstance(width, int):
        taken = ", ".join(f"{i.name} {i.dtype} {show_shape(i.shape)}" for i in inputs)
        raise ConfigError(
            f"dataset 'voice-activity' has float32 sequences [frames, {HOP} or more], but the model takes {taken}: name a "
            "model with states that takes audio, e.g. silero-vad"
        )
    return first.name, frames if isinstance(frames, int) else FRAMES, width


_: type[Dataset] = VoiceActivityDataset
