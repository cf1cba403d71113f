"""Makes clips of tones and chords whose notes are known exactly, for models that transcribe music.

A seed determines every note. The sound is rounded to 16 bits, as in a WAV file, so that the sound is the same on every
machine. The label lists the onset (s), end (s) and MIDI pitch of each note.
"""

import hashlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from harness.datasets.parts import numbers, sources
from harness.datasets.parts.prompts.options import Options
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sources import IN_MANIFEST, own_step, refuse_data_dir
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup, show_shape

COUNT = 128
MOST = 10_000

LOWEST, HIGHEST = 45, 84
"""Lowest and highest MIDI pitch: A2 (110 Hz) and C6 (1047 Hz)."""

A4_HZ, A4_MIDI = 440.0, 69

MARGIN_SECONDS = 0.2
"""Silence at the beginning and at the end of a clip, because models lack context in these places."""

EVENT_SECONDS = 0.5
"""Minimum duration of an event, which is a tone or a chord."""

CHORDS: tuple[tuple[int, ...], ...] = ((0,), (0,), (0, 4), (0, 7), (0, 4, 7), (0, 3, 7), (0, 5, 9))
"""Semitones of each note above the lowest note of an event, for single tones, intervals and triads."""

_SCORED, _CALIBRATION = 0, 1
"""Keys of two independent streams of random numbers."""

_HARMONICS = 8
_ATTACK_SECONDS, _RELEASE_SECONDS = 0.005, 0.02
_LOUDEST = 32767
_MOST_VOICES = 3


class Note(NamedTuple):
    """One note of a clip. The times of a note are in audio samples."""

    start: int
    length: int
    pitch: int
    brightness: float
    """The k-th harmonic has the amplitude brightness ** (k - 1)."""
    decay_seconds: float
    """Time in which the amplitude falls to 1 / e."""


class TonesDataset(LoadedRows):
    """Clips of mono sound in [-1, 1] for the model's only input, which must have an `audio` step.

    The step sets the audio samples per second and the length of a clip. A clip has at least one event.

    --dataset-option:
    count  number of clips (128)
    seed   seed of the notes (1); --seed does not change them
    """

    name = "tones"
    options = ("count", "seed")

    def __init__(self, setup: DatasetSetup, stream: int = _SCORED) -> None:
        refuse_data_dir(setup, self.name)
        sources.check_steps(setup, self.name, ("audio", *numbers.STEPS))
        self._setup, self._stream = setup, stream
        options = Options(setup.options)
        self._count = options.whole("count", COUNT, MOST)
        self._seed = options.whole("seed", 1, 2**31)
        self._rate, self._length, self._shape = _clip(setup)
        self._made: dict[int, Array] = {}
        super().__init__(self._count)

    def load(self, indices: Sequence[int]) -> None:
        (spec,) = self._setup.inputs
        rows = np.stack([self._sound(index) for index in indices]) / np.float32(_LOUDEST + 1)
        rows = numbers.apply(rows, self._setup.steps[spec.name])
        self.hold(indices, {spec.name: rows.reshape(len(rows), *self._shape).astype(spec.dtype)})

    def label(self, index: int) -> list[list[float]]:
        rate = self._rate
        return [
            [note.start / rate, (note.start + note.length) / rate, float(note.pitch)]
            for note in self._notes[index]
        ]

    def calibration(self) -> Dataset:
        return TonesDataset(self._setup, _CALIBRATION)

    def describe(self) -> Mapping[str, object]:
        steps = sources.shown_steps(self._setup)
        labels = [self.label(index) for index in range(self._count)]
        total = hashlib.sha256(repr((labels, sorted(steps.items()))).encode())
        for index in range(self._count):
            total.update(self._sound(index).tobytes())
        return {
            "name": self.name,
            "count": len(self),
            "source": f"tones and chords of harmonics, seed {self._seed}",
            "notes": sum(len(notes) for notes in self._notes),
            "steps": steps,
            "digest": total.hexdigest(),
        }

    @cached_property
    def _notes(self) -> list[list[Note]]:
        return [self._notes_of(index) for index in range(self._count)]

    def _notes_of(self, index: int) -> list[Note]:
        """Returns the notes of a clip, in order. Events never overlap, so notes with the same pitch do not overlap
        either.
        """
        random = np.random.default_rng([self._seed, self._stream, index])
        room = self._length / self._rate - 2 * MARGIN_SECONDS
        events = int(random.integers(1, max(1, int(room / EVENT_SECONDS)) + 1))
        slot = room / events
        notes = []
        for event in range(events):
            begin = MARGIN_SECONDS + slot * (event + random.uniform(0.0, 0.25))
            seconds = slot * random.uniform(0.55, 0.7)
            chord = CHORDS[random.integers(len(CHORDS))]
            lowest = int(random.integers(LOWEST, HIGHEST - max(chord) + 1))
            brightness, decay = random.uniform(0.3, 0.7), random.uniform(0.4, 1.5)
            start, length = round(begin * self._rate), round(seconds * self._rate)
            notes += [Note(start, length, lowest + above, brightness, decay) for above in chord]
        return notes

    def _sound(self, index: int) -> Array:
        """Returns a clip, (length,) int16. Each clip is made only once."""
        if index not in self._made:
            self._made[index] = self._mixed(self._notes[index])
        return self._made[index]

    def _mixed(self, notes: Sequence[Note]) -> Array:
        mixed = np.zeros(self._length)
        for note in notes:
            mixed[note.start : note.start + note.length] += tone(note, self._rate)
        return np.rint(mixed * (_LOUDEST / _MOST_VOICES)).astype(np.int16)


def tone(note: Note, rate: int) -> Array:
    """Returns a note as (length,) float64 in [-1, 1]. The harmonics of the note decay, with a short attack and release."""
    seconds = np.arange(note.length) / rate
    hertz = A4_HZ * 2.0 ** ((note.pitch - A4_MIDI) / 12)
    audible = [k for k in range(1, _HARMONICS + 1) if k * hertz < rate / 2]
    loudness = [note.brightness ** (k - 1) for k in audible]
    waves = [
        share * np.sin(2 * np.pi * hertz * k * seconds)
        for k, share in zip(audible, loudness, strict=True)
    ]
    attack = np.minimum(1.0, seconds / _ATTACK_SECONDS)
    release = np.minimum(1.0, (note.length / rate - seconds) / _RELEASE_SECONDS)
    envelope = attack * release * np.exp(-seconds / note.decay_seconds)
    total: Array = envelope * np.sum(waves, axis=0) / sum(loudness)
    return total


def _clip(setup: DatasetSetup) -> tuple[int, int, tuple[int, ...]]:
    """Returns the audio samples per second, the audio samples per clip, and the shape of a sample."""
    step = own_step(setup, setup.inputs[0].name, "audio")
    if len(setup.inputs) != 1 or step is None or step.options["gives"] != "samples":
        raise ConfigError(
            f"dataset 'tones' needs a model with one input that has an `audio` step: declare it {IN_MANIFEST}"
        )
    (spec,) = setup.inputs
    rate = int(step.options["rate"])
    length = round(rate * step.options["max_seconds"])
    shape = numbers.row_shape((length,), spec)
    if shape is None:
        raise ConfigError(
            f"input {spec.name!r} takes {show_shape(spec.shape[1:])}, but its step gives {length:,} audio samples"
        )
    if length / rate < 2 * MARGIN_SECONDS + EVENT_SECONDS:
        raise ConfigError(
            f"dataset 'tones' needs clips of at least {2 * MARGIN_SECONDS + EVENT_SECONDS:.1f} s, but the step "
            f"`audio` of input {spec.name!r} has {length / rate:.3f} s: choose a different --dataset"
        )
    return rate, length, shape


_: type[Dataset] = TonesDataset
