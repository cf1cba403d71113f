"""Converts the activations of onsets and of sounding pitches to notes, with two thresholds."""

import numpy as np

from harness.errors import ConfigError
from harness.types import Array, show_shape

COLUMNS = 3
"""The columns of a note: onset and end in seconds, and MIDI pitch (69 is A4, 440 Hz)."""

_KINDS = 2
"""Length of the last axis, which contains the activations of onsets and of sounding pitches."""


def transcribed(
    activations: Array,
    *,
    onset: float,
    frame: float,
    frame_seconds: float,
    lowest_pitch: int,
    shortest_frames: int,
    gap_frames: int,
) -> list[Array]:
    """Returns n arrays (k, 3) float32 with one row per note, sorted by onset and then by pitch.

    activations: (n, frames, pitches, 2), onsets before sounding pitches, as `stack` returns them. A note begins at each
    local maximum of the onsets that is at least `onset`. A note lasts while the activation of the pitch is at least
    `frame`, but ends at the latest when the next note of the same pitch begins. Up to `gap_frames` frames below `frame`
    do not end the note. Drops notes shorter than `shortest_frames`.
    """
    if activations.shape[3] != _KINDS:
        shape = show_shape(("n", *activations.shape[1:]))
        raise ConfigError(
            f"notes takes [n, frames, pitches, 2], onsets first, not {shape}: name these two outputs in `stack`"
        )
    notes = []
    for onsets, frames in np.moveaxis(activations, 3, 1):
        sounds = frames >= frame
        rows = [
            (start, end, pitch)
            for start, last, pitch in _begins(onsets, onset)
            if (end := _end(sounds[start:last, pitch], gap_frames) + start) - start
            >= shortest_frames
        ]
        table = np.array(rows, np.float32).reshape(-1, COLUMNS)
        table[:, :2] *= np.float32(frame_seconds)
        table[:, 2] += lowest_pitch
        notes.append(table)
    return notes


def _begins(onsets: Array, least: float) -> list[tuple[int, int, int]]:
    """Returns (frame of the onset, frame of the next onset at this pitch, pitch) of each note, in order.

    onsets: (frames, pitches). The first and the last frame are never onsets. If several consecutive frames are equal,
    only the first frame counts.
    """
    inner = onsets[1:-1]
    is_peak = (inner >= least) & (inner > onsets[:-2]) & (inner >= onsets[2:])
    starts, pitches = np.nonzero(is_peak)
    begins: list[tuple[int, int, int]] = []
    nexts = dict.fromkeys(pitches.tolist(), len(onsets))
    for start, pitch in zip((starts + 1).tolist()[::-1], pitches.tolist()[::-1], strict=True):
        begins.append((start, nexts[pitch], pitch))
        nexts[pitch] = start
    return begins[::-1]


def _end(sounds: Array, gap: int) -> int:
    """Returns the number of frames up to the first pause of more than `gap` frames.

    sounds: (frames,) whether the pitch sounds in each frame, starting at the note's onset.
    """
    places = np.concatenate(([0], np.flatnonzero(sounds)))  # the frame of the onset always counts
    pauses = np.flatnonzero(np.diff(places) > gap + 1)
    return int(places[pauses[0] if len(pauses) else -1]) + 1
