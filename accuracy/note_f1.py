"""Scores music transcriptions by the F1 of their notes, like mir_eval's transcription metrics."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from harness.types import Answer, Array, HasAnswerShape, HasLabelCheck, Metric, Score

COLUMNS = 3

ONSET_SECONDS = 0.05
"""A note matches a label only if their onsets differ by at most this time."""

PITCH_SEMITONES = 0.5
END_SECONDS, END_SHARE = 0.05, 0.2
"""In scores that compare ends, a note matches a label only if their ends differ by at most END_SECONDS or END_SHARE of
the label's duration, whichever is longer.
"""

_DECIMALS = 4
"""Number of decimals to which time differences in seconds are rounded, as in mir_eval. Without rounding, 1.05 - 1 would
exceed 0.05 in binary floating point.
"""


class NoteF1:
    """Mean F1 over the samples, in percent. Answers and labels are (k, 3) arrays whose rows contain onset (s), end (s)
    and MIDI pitch, as the step `notes` returns them.

    A note matches a label if their onsets differ by at most 50 ms and their pitches by at most half a semitone. Each
    note and each label may belong to only one pair. The metric finds as many pairs as possible.
    Definition: Raffel et al., "mir_eval" (2014), transcription.precision_recall_f1_overlap without offsets.
    """

    def __init__(self, dtype: str) -> None:
        self._dtype = np.dtype(dtype)
        if self._dtype.kind != "f":
            raise ValueError(
                f"note_f1 needs rows of floats, but the answers are {dtype}: postprocess with notes"
            )

    def check_shape(self, shape: Sequence[int | None]) -> None:
        """Refuses answers whose rows do not contain three numbers."""
        if len(shape) != 2 or shape[1] != COLUMNS:
            sizes = " x ".join("?" if size is None else str(size) for size in shape)
            raise ValueError(
                f"note_f1 needs rows of onset, end and pitch, but each answer is {sizes or 'one'} numbers: "
                "postprocess with notes"
            )

    def check_labels(self, labels: Mapping[int, object]) -> None:
        for index, label in labels.items():
            _notes_of(index, label)

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        found = [self._match(answer, labels[answer.sample]) for answer in answers]
        value, precision, recall, with_ends = (
            100.0 * float(np.mean(column)) for column in zip(*found, strict=True)
        )
        return Score(
            metric="note_f1",
            value=value,
            unit="%",
            samples=len(found),
            line=f"note F1={value:.4f}%, precision={precision:.4f}%, recall={recall:.4f}%, total={len(found)}",
            details={"precision": precision, "recall": recall, "note_f1_with_ends": with_ends},
        )

    def _match(self, answer: Answer, label: object) -> "_Shares":
        if len(answer.payload) % (COLUMNS * self._dtype.itemsize):
            raise ValueError(
                f"the answer to sample {answer.sample} has {len(answer.payload)} bytes, which is not a multiple of "
                f"{COLUMNS} {self._dtype} numbers: postprocess with notes"
            )
        notes = np.frombuffer(answer.payload, self._dtype).reshape(-1, COLUMNS).astype(np.float64)
        expected = _notes_of(answer.sample, label)
        alike = _alike(notes, expected)
        right = _most_pairs(alike)
        precision, recall = right / max(len(notes), 1), right / len(expected)
        with_ends = _most_pairs(alike & _end_together(notes, expected))
        size = len(notes) + len(expected)
        return _Shares(2 * right / size, precision, recall, 2 * with_ends / size)


class _Shares(NamedTuple):
    """A sample's scores, each in [0, 1]."""

    f1: float
    precision: float
    recall: float
    f1_with_ends: float


def _notes_of(index: int, label: Any) -> Array:
    """Returns a label's notes as a (k, 3) float64 array. Raises a ValueError if the label is empty or not a list of
    notes.
    """
    try:
        notes = np.array(label, np.float64)
    except (TypeError, ValueError):
        notes = np.zeros(0)
    if notes.ndim != 2 or not len(notes) or notes.shape[1] != COLUMNS:
        shown = " ".join(repr(label).split())
        raise ValueError(
            f"the label of sample {index} is not a list of at least one [onset, end, pitch]: {shown:.60}"
        )
    return notes


def _alike(notes: Array, expected: Array) -> Array:
    """Returns a (notes, labels) mask that is true for pairs whose onsets and pitches match."""
    onsets = np.abs(np.subtract.outer(notes[:, 0], expected[:, 0])).round(_DECIMALS)
    pitches = np.abs(np.subtract.outer(notes[:, 2], expected[:, 2]))
    alike: Array = (onsets <= ONSET_SECONDS) & (pitches <= PITCH_SEMITONES)
    return alike


def _end_together(notes: Array, expected: Array) -> Array:
    """Returns a (notes, labels) mask that is true for pairs whose ends match."""
    ends = np.abs(np.subtract.outer(notes[:, 1], expected[:, 1])).round(_DECIMALS)
    together: Array = ends <= np.maximum(END_SECONDS, END_SHARE * (expected[:, 1] - expected[:, 0]))
    return together


def _most_pairs(alike: Array) -> int:
    """Returns the maximum number of pairs if each row and each column may be used only once (Kuhn's algorithm)."""
    partners = [np.flatnonzero(row).tolist() for row in alike]
    taken: dict[int, int] = {}

    def pairs(row: int, tried: set[int]) -> bool:
        for column in partners[row]:
            if column in tried:
                continue
            tried.add(column)
            if column not in taken or pairs(taken[column], tried):
                taken[column] = row
                return True
        return False

    return sum(pairs(row, set()) for row in range(len(partners)))


_: type[Metric] = NoteF1
__: type[HasAnswerShape] = NoteF1
___: type[HasLabelCheck] = NoteF1
