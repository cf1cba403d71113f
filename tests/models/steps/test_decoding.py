"""Texts decoded from CTC scores, and notes decoded from activations."""

from itertools import groupby
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness.loadgen.answers import Ragged
from harness.models.manifest.schema import Output
from harness.models.steps.notes import transcribed
from harness.models.steps.postprocess import check, postprocessor
from harness.types import Batch, Outputs
from tests.builders.refusals import refusal

FRAMES, PITCHES = 60, 88
NO_BATCH = Batch(1, {})


def answers(steps: object, outputs: Outputs) -> list[Any]:
    declared = Output.model_validate({"name": "y", "postprocess": steps}).postprocess
    found = postprocessor(declared, "y").answers(outputs, (0,))
    assert isinstance(found, Ragged)
    return [row.tolist() for row in found.rows]


def one_hot(path: list[list[int]], classes: int) -> Any:
    return np.eye(classes, dtype=np.float32)[path]


@given(hnp.arrays(np.int64, st.tuples(st.integers(1, 3), st.integers(1, 12)), elements=st.integers(0, 4)), st.integers(-1, 4))  # fmt: skip
def test_ctc_drops_repeats_and_blanks(path: Any, blank: int) -> None:
    no_symbol = 4 if blank == -1 else blank
    wanted = [[c for c, _ in groupby(row) if c != no_symbol] for row in path.tolist()]
    assert answers({"ctc": {"blank": blank}}, one_hot(path.tolist(), 5)) == wanted


def test_ctc_keeps_a_letter_that_a_blank_separates() -> None:
    assert answers("ctc", one_hot([[0, 1, 1, 0, 1, 2], [0, 0, 0, 0, 0, 0]], 3)) == [[1, 1, 2], []]


def test_ctc_answers_are_int64_without_any_symbol_too() -> None:
    declared = Output.model_validate({"name": "y", "postprocess": "ctc"}).postprocess
    found = postprocessor(declared, "y").answers(one_hot([[0, 0]], 3), (0,))
    assert (found.dtype, found.shape) == (np.dtype(np.int64), (1, None))


@pytest.mark.parametrize(
    ("steps", "shape", "line"),
    [
        (
            "ctc",
            (1, 4),
            ("ctc takes [n, positions, classes], not float32 of shape [n, 4]"),
        ),
        (
            {"ctc": {"blank": 9}},
            (1, 4, 3),
            "ctc.blank is 9, but the output has only the classes 0 to 2",
        ),
        (
            {"notes": {"frame_seconds": 0.01}},
            (1, 4, 88),
            (
                "notes takes [n, frames, pitches, 2], from the step "
                "`stack`, not float32 of shape [n, 4, 88]"
            ),
        ),
        (
            {"notes": {"frame_seconds": 0.01}},
            (1, 4, 88, 3),
            (
                "notes takes [n, frames, pitches, 2], onsets first, not "
                "[n, 4, 88, 3]: name these two outputs in `stack`"
            ),
        ),
    ],
)
def test_output_of_another_shape_is_refused_before_the_run(
    steps: object, shape: tuple[int, ...], line: str
) -> None:
    declared = Output.model_validate({"name": "y", "postprocess": steps}).postprocess
    rows = np.zeros(shape, np.float32)
    told = refusal(check, declared, "y", None, rows, NO_BATCH, (0,))
    assert told == f"the manifest's field 'outputs.0.postprocess.0': {line}"


def played(*notes: tuple[int, int, int]) -> Any:
    """Returns the activations, (1, FRAMES, PITCHES, 2), of a perfect model for notes (frame, end, pitch)."""
    made = np.zeros((1, FRAMES, PITCHES, 2), np.float32)
    for start, end, pitch in notes:
        made[0, start - 1 : start + 2, pitch, 0] = (0.4, 0.9, 0.4)
        made[0, start:end, pitch, 1] = 0.8
    return made


def notes_of(activations: Any, **options: float) -> list[list[float]]:
    (found,) = answers([{"notes": {"frame_seconds": 0.5, **options}}], activations)
    return [[float(x) for x in row] for row in found]


def test_notes_have_onset_end_and_midi_pitch_in_order() -> None:
    found = notes_of(played((20, 40, 3), (5, 30, 60), (20, 33, 1)))
    assert found == [[2.5, 15.0, 81.0], [10.0, 16.5, 22.0], [10.0, 20.0, 24.0]]


def test_note_ends_before_the_next_one_of_its_pitch() -> None:
    assert notes_of(played((5, 50, 7), (25, 50, 7))) == [[2.5, 12.5, 28.0], [12.5, 25.0, 28.0]]


@pytest.mark.parametrize(("gap", "end"), [(10, 50), (11, 20)])
def test_short_pause_does_not_end_a_note(gap: int, end: int) -> None:
    activations = played((5, 50, 7))
    activations[0, 20 : 20 + gap, 7, 1] = 0.2
    assert notes_of(activations) == [[2.5, end / 2, 28.0]]


@pytest.mark.parametrize(("frames", "count"), [(11, 0), (12, 1)])
def test_notes_below_the_shortest_are_dropped(frames: int, count: int) -> None:
    assert len(notes_of(played((5, 5 + frames, 7)))) == count


def test_onset_below_the_threshold_begins_no_note() -> None:
    assert notes_of(played((5, 50, 7)), onset=0.95) == []
    assert notes_of(played((5, 50, 7)), frame=0.85) == []
    assert len(notes_of(played((5, 50, 7)), frame=0.85, shortest_frames=1)) == 1


def test_row_of_equal_onsets_begins_one_note() -> None:
    activations = played((5, 50, 7))
    activations[0, 5:9, 7, 0] = 0.9
    assert notes_of(activations) == [[2.5, 25.0, 28.0]]


def test_sample_without_notes_has_no_rows() -> None:
    declared = Output.model_validate(
        {"name": "y", "postprocess": {"notes": {"frame_seconds": 1.0}}}
    )
    found = postprocessor(declared.postprocess, "y").answers(played(), (0,))
    assert (found.dtype, found.shape) == (np.dtype(np.float32), (1, None, 3))


@given(hnp.arrays(np.float32, (1, 20, 4, 2), elements=st.floats(0, 1, width=16)))
def test_notes_of_one_pitch_never_overlap(activations: Any) -> None:
    (table,) = transcribed(
        activations,
        onset=0.5,
        frame=0.3,
        frame_seconds=1.0,
        lowest_pitch=0,
        shortest_frames=1,
        gap_frames=3,
    )
    assert table.tolist() == sorted(table.tolist(), key=lambda row: (row[0], row[2]))
    for pitch in range(4):
        own = table[table[:, 2] == pitch]
        assert (own[:, 1] > own[:, 0]).all()
        assert (own[1:, 0] >= own[:-1, 1]).all()


def test_two_outputs_by_name_become_notes() -> None:
    both = played((5, 50, 7))
    steps = [{"stack": {"outputs": ["onset", "note"]}}, {"notes": {"frame_seconds": 0.5}}]
    (found,) = answers(steps, {"note": both[..., 1], "onset": both[..., 0]})
    assert found == [[2.5, 25.0, 28.0]]
