"""Keeps the sequence that each stream plays, the position in the sequence, and the state after the last frame.

The state is stored with the stream, so that any instance may process a frame of any stream. Only the instance that is
processing a frame of the stream accesses the state (see `dispatch.py`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from harness.models.sequences.backend import SequenceBackend
from harness.run.measured.own_scheduler import Play
from harness.types import Array, Dataset


class Playing:
    """A sequence that a stream plays until its last frame."""

    __slots__ = ("answers", "at", "first_query", "frames", "inputs", "sample", "states")

    def __init__(
        self,
        sample: int,
        query: int,
        inputs: Mapping[str, Array],
        frames: int,
        states: Mapping[str, Array],
    ) -> None:
        """inputs: (frames, ...) arrays as in the file. states: initial states."""
        self.sample, self.first_query = sample, query
        self.inputs, self.frames, self.states = inputs, frames, states
        self.at = 0
        self.answers: list[bytes] = []

    @property
    def frame(self) -> Mapping[str, Array]:
        """Returns the inputs of the next frame."""
        at = self.at
        return {name: rows[at] for name, rows in self.inputs.items()}


class Streams:
    """All streams of a run. Each stream plays samples that it draws with replacement.

    The seed of a stream's random generator contains the stream's number.
    """

    def __init__(
        self, backend: SequenceBackend, dataset: Dataset, held: int, count: int, seed: int
    ) -> None:
        """held: number of samples in memory. seed: LoadGen's seed for sample indices."""
        self._cut, self._starts, self._dataset = backend.cut, backend.starts, dataset
        self._held = held
        self._playing: list[Playing | None] = [None] * count
        self._random = [np.random.RandomState([seed & 0xFFFFFFFF, n]) for n in range(count)]

    def __len__(self) -> int:
        return len(self._playing)

    def frame_of(self, query: int) -> Playing:
        """Returns the sequence that the query's stream plays. Begins the next sequence if the previous sequence has
        ended.
        """
        stream = query % len(self._playing)
        playing = self._playing[stream]
        if playing is None or playing.at == playing.frames:
            sample = int(self._random[stream].randint(0, self._held))
            inputs, frames = self._cut(self._dataset.batch([sample]).inputs)
            playing = Playing(sample, query, inputs, frames, self._starts(1))
            self._playing[stream] = playing
        return playing

    @staticmethod
    def move_on(
        playing: Sequence[Playing], answers: Any, states: Sequence[Mapping[str, Array]]
    ) -> list[Play]:
        """Takes the answers and the next states of these sequences. Returns the sequences that have ended."""
        ended = []
        for one, answer, following in zip(playing, answers, states, strict=True):
            one.states = following
            one.at += 1
            one.answers.append(answer.tobytes())
            if one.at == one.frames:
                ended.append(Play(one.first_query, one.sample, b"".join(one.answers)))
        return ended

    def drop(self, queries: Sequence[int]) -> None:
        """Ends the sequences of a failed batch, because the states of these sequences are unknown."""
        for query in queries:
            self._playing[query % len(self._playing)] = None
