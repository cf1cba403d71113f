"""The metrics for transcripts: characters of texts and notes of music, checked by hand and with other packages."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.accuracy.cer import CharacterErrorRate
from harness.accuracy.note_f1 import NoteF1, _most_pairs
from harness.types import Answer, Score
from tests.builders.refusals import refusal

TEXTS = st.text("ab 1", max_size=8)
NOTES = st.lists(
    st.tuples(st.integers(0, 30), st.integers(2, 20), st.integers(60, 63)), min_size=1, max_size=7
)


def read(answers: Sequence[str], labels: Sequence[str]) -> Score:
    rows = [Answer(i, text.encode()) for i, text in enumerate(answers)]
    return CharacterErrorRate("uint8").score(rows, dict(enumerate(labels)))


def test_character_errors_are_counted_over_all_texts() -> None:
    found = read(["kitten", "ab", "  Yes "], ["sitting", "ab", "yes"])
    assert found.value == pytest.approx(100 * (3 + 0 + 1) / (7 + 2 + 3))
    assert found.details == pytest.approx(
        {"character_accuracy": 100 - found.value, "exact_match": 100 / 3}
    )
    assert (found.metric, found.unit, found.samples, found.lower_is_better) == ("cer", "%", 3, True)
    assert found.line == "Character Error Rate: 33.3333%, accuracy=66.6667%"


def test_failed_sample_has_all_its_characters_wrong() -> None:
    assert read([""], ["four"]).value == 100
    assert read(["eight or nine"], ["four"]).value > 100


def test_integers_with_symbols_are_read_as_their_text() -> None:
    label = {"text": "a b", "symbols": ("", "a", "b", " ")}
    rows = [Answer(0, np.array([1, 3, 2], np.int64).tobytes())]
    assert CharacterErrorRate("int64").score(rows, {0: label}).value == 0


def test_labels_without_a_character_give_no_rate() -> None:
    told = refusal(read, ["a"], [" "], error=ValueError)
    assert told == "the labels have no characters: the error rate is undefined"


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=1, max_size=4))
def test_character_error_rate_is_jiwers(pairs: list[tuple[str, str]]) -> None:
    jiwer = pytest.importorskip("jiwer")
    pairs = [(read, right) for read, right in pairs if right.strip()]
    if pairs:
        answers, labels = map(list, zip(*pairs, strict=True))
        assert read(answers, labels).value == pytest.approx(100 * jiwer.cer(labels, answers))


def transcribed(answers: Mapping[int, Any], labels: Mapping[int, Any]) -> Score:
    rows = [
        Answer(i, row if isinstance(row, bytes) else np.array(row, np.float32).tobytes())
        for i, row in answers.items()
    ]
    return NoteF1("float32").score(rows, labels)


def test_notes_within_50_ms_and_half_a_semitone_are_right() -> None:
    label = [[1.0, 2.0, 60.0], [1.0, 2.0, 64.0], [3.0, 4.0, 60.0]]
    answer = [[1.05, 2.3, 60.0], [1.0, 2.0, 65.0], [3.051, 4.0, 60.0], [0.96, 1.9, 63.5]]
    found = transcribed({0: answer}, {0: label})
    precision, recall = 2 / 4, 2 / 3
    assert found.value == pytest.approx(100 * 2 * precision * recall / (precision + recall))
    assert found.details == pytest.approx(
        {"precision": 50.0, "recall": 200 / 3, "note_f1_with_ends": 200 / 7}
    )
    assert (found.metric, found.unit, found.samples) == ("note_f1", "%", 1)


def test_score_is_the_mean_of_the_samples() -> None:
    label = [[1.0, 2.0, 60.0], [2.0, 3.0, 62.0]]
    found = transcribed({0: label, 1: label[:1], 2: b""}, dict.fromkeys(range(3), label))
    assert found.value == pytest.approx(100 * (1 + 2 / 3 + 0) / 3)
    assert found.line == ("note F1=55.5556%, precision=66.6667%, recall=50.0000%, total=3")


def test_note_played_twice_is_right_once() -> None:
    label = [[1.0, 2.0, 60.0]]
    assert transcribed({0: [*label, [1.02, 2.0, 60.0]]}, {0: label}).value == pytest.approx(200 / 3)


@given(st.lists(st.lists(st.booleans(), min_size=4, max_size=4), min_size=1, max_size=5))
def test_pairs_are_the_most_that_any_order_finds(rows: list[list[bool]]) -> None:
    alike = np.array(rows)
    columns = [*range(4), *[None] * len(rows)]
    best = max(
        sum(c is not None and bool(alike[r, c]) for r, c in enumerate(chosen))
        for chosen in itertools.permutations(columns, len(rows))
    ) if len(rows) <= 3 else None  # fmt: skip
    found = _most_pairs(alike)
    assert found <= min(alike.any(axis=1).sum(), alike.any(axis=0).sum())
    assert best is None or found == best


@given(NOTES, NOTES)
def test_note_f1_is_mir_evals(answer: list[tuple[int, int, int]], label: list[tuple[int, int, int]]) -> None:  # fmt: skip
    transcription = pytest.importorskip("mir_eval.transcription")
    ours, theirs = (
        np.array([(s * 0.02, (s + n) * 0.02, p) for s, n, p in notes], np.float32)
        for notes in (answer, label)
    )
    wide = [notes.astype(np.float64) for notes in (theirs, ours)]
    hertz = [440 * 2 ** ((notes[:, 2] - 69) / 12) for notes in wide]
    given_notes = (wide[0][:, :2], hertz[0], wide[1][:, :2], hertz[1])
    precision, recall, f1, _ = transcription.precision_recall_f1_overlap(
        *given_notes, offset_ratio=None
    )
    _, _, with_ends, _ = transcription.precision_recall_f1_overlap(*given_notes)
    found = transcribed({0: ours}, {0: theirs.tolist()})
    assert found.value == pytest.approx(100 * f1)
    assert found.details == pytest.approx(
        {"precision": 100 * precision, "recall": 100 * recall, "note_f1_with_ends": 100 * with_ends}
    )


@pytest.mark.parametrize("label", [[], [[1.0, 2.0]], "abc", None, [[1.0, 2.0, 60.0], [1.0]], 7])
def test_label_that_is_not_a_list_of_notes_is_named(label: object) -> None:
    told = refusal(NoteF1("float32").check_labels, {3: label}, error=ValueError)
    assert told.startswith(
        "the label of sample 3 is not a list of at least one [onset, end, pitch]: "
    )


@pytest.mark.parametrize(("shape", "shown"), [([172, 88], "172 x 88"), ([3], "3"), ([], "one")])
def test_answers_that_are_not_notes_are_refused(shape: list[int], shown: str) -> None:
    told = refusal(NoteF1("float32").check_shape, shape, error=ValueError)
    assert told == (
        f"note_f1 needs rows of onset, end and pitch, but each answer is {shown} numbers: postprocess with notes"
    )
    NoteF1("float32").check_shape([None, 3])


def test_answers_of_another_type_or_size_are_refused() -> None:
    assert "but the answers are int64" in refusal(NoteF1, "int64", error=ValueError)
    told = refusal(transcribed, {0: b"12345678"}, {0: [[1.0, 2.0, 60.0]]}, error=ValueError)
    assert told.startswith(
        "the answer to sample 0 has 8 bytes, which is not a multiple of 3 float32"
    )
