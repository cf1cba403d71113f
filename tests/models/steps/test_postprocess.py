"""Postprocessing turns outputs into answers, and finds NaN and Inf in the outputs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from harness.errors import ConfigError, PluginUnavailable
from harness.loadgen.answers import AnswerRow, Answers, Ragged, common_row, largest_bytes, row_of
from harness.models.manifest.schema import Output
from harness.models.steps.boxes import suppress
from harness.models.steps.postprocess import (
    Hook,
    Postprocess,
    check,
    flat,
    not_finite,
    postprocessor,
)
from harness.types import Batch, Outputs
from tests.builders.refusals import refusal

INDICES = (0, 1, 2)

outputs = hnp.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 12)),
    elements=st.floats(-3, 3, width=32) | st.sampled_from([np.nan, np.inf, -np.inf]),
)


def made(steps: object, output: str | None = None, hook: Hook | None = None) -> Postprocess:
    """Builds the postprocessing from steps in a manifest's notation."""
    declared = Output.model_validate({"name": "y", "postprocess": steps})
    return postprocessor(declared.postprocess, output, hook)


def answers_of(steps: object, given_outputs: Outputs, indices: Sequence[int] = INDICES) -> Answers:
    return made(steps).answers(given_outputs, indices)


def listed(answers: Answers) -> Any:
    rows = answers.rows if isinstance(answers, Ragged) else answers
    return [np.asarray(row).tolist() for row in rows]


@given(outputs)
def test_nan_and_inf_are_found_with_any_step(rows: Any) -> None:
    """Bug: +Inf was accepted, although a float16 model that overflows returns +Inf before NaN."""
    wanted = not rows.max() < np.inf
    for step in ("none", "argmax", {"topk": {"k": 1}}, ["softmax", "argmax"]):
        post = made(step)
        with np.errstate(invalid="ignore"):
            answers = post.answers(rows, INDICES)
        assert post.not_finite(rows, answers) == wanted


@pytest.mark.parametrize("width", [8, 8192])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.complex64])
@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
def test_inf_and_nan_are_distinguished_from_large_numbers(dtype: Any, width: int) -> None:
    """Scores that a model masks with -Inf are not a fault, nor is a sum that overflows."""
    rows = np.full((2, width), np.finfo(dtype).max, dtype)
    assert not not_finite(rows)
    for value in (np.nan, np.inf):
        rows[0, 3] = value
        assert not_finite(rows)
    rows[0, 3] = -np.inf
    assert not_finite(rows) == (dtype is np.complex64)
    rows[:] = -np.inf
    assert not_finite(rows) == (dtype is np.complex64)


def test_masked_scores_of_samples_of_different_lengths_are_accepted() -> None:
    masked: Any = [np.array([1.0, -np.inf]), np.array([2.0, -np.inf, -np.inf])]
    assert not not_finite(masked)
    by_name: Any = {"scores": masked}
    assert not not_finite(by_name)
    masked.append(np.array([np.inf]))
    assert not_finite(by_name)


def test_integers_hold_no_nan() -> None:
    post = made("argmax")
    rows = np.array([[1, 5, 2]])
    answers = post.answers(rows, INDICES)
    assert listed(answers) == [1]
    assert not post.not_finite(rows, answers)
    assert not not_finite(rows)


def test_nan_in_an_output_that_is_not_the_answer_is_found() -> None:
    post = made("argmax", "logits")
    found = {"other": np.array([[np.nan]]), "logits": np.array([[0.0, 2.0]])}
    answers = post.answers(found, INDICES)
    assert listed(answers) == [1]
    assert post.not_finite(found, answers)


@given(hnp.arrays(np.float32, (3, 7), elements=st.integers(-3, 3).map(float)), st.integers(1, 7))
def test_topk_is_the_best_first_and_of_equals_the_first(rows: Any, k: int) -> None:
    wanted = [sorted(range(7), key=lambda c, row=row: -row[c])[:k] for row in rows]  # type: ignore[misc]
    found = answers_of({"topk": {"k": k}}, rows)
    assert listed(found) == wanted
    assert np.array_equal(np.asarray(found)[:, 0], rows.argmax(axis=1))
    assert found.dtype == np.int64
    assert listed(answers_of({"topk": {"k": k}}, (rows + 3).astype(np.uint8))) == wanted


def test_output_that_the_model_lacks_is_refused() -> None:
    told = refusal(made("none", "logits").answers, {"other": np.zeros((1, 2))}, INDICES)
    assert "'logits' is not among the model's outputs: other" in told


def test_topk_of_more_than_the_number_of_classes_is_refused() -> None:
    told = refusal(answers_of, "topk", np.zeros((1, 3), np.float32))
    assert told == "topk.k is 5, but the output has only 3 classes"


def test_softmax_sums_to_one_and_large_logits_do_not_overflow() -> None:
    found = answers_of("softmax", np.array([[1000.0, 1000.0], [0.0, -np.log(3.0)]], np.float32))
    assert np.allclose(np.asarray(found), [[0.5, 0.5], [0.75, 0.25]])
    assert found.dtype == np.float32


def test_steps_run_in_their_order() -> None:
    rows = np.array([[0.0, 2.0, 1.0], [0.0, 1.0, 2.0]], np.float32)
    assert listed(answers_of(["softmax", {"topk": {"k": 2}}], rows)) == [[1, 2], [2, 1]]
    assert listed(answers_of(["argmax", {"shift": {"by": -1}}], rows)) == [0, 1]


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool", "int32", "uint64"])
def test_shift_wraps_no_small_integers(dtype: str) -> None:
    """Bug: in uint8, 255 + 1 was 0."""
    most = True if dtype == "bool" else min(np.iinfo(dtype).max, 2**40)
    rows = np.array([0, most], dtype)
    assert listed(answers_of({"shift": {"by": 1}}, rows)) == [1, most + 1]
    assert listed(answers_of({"shift": {"by": -300}}, rows)) == [-300, most - 300]


def test_threshold_turns_one_score_into_a_class() -> None:
    for rows in (np.array([0.2, 0.5, 0.7]), np.array([[0.2], [0.5], [0.7]], np.float32)):
        assert listed(answers_of("threshold", rows)) == [0, 0, 1]
        assert listed(answers_of({"threshold": {"above": 0.1}}, rows)) == [1, 1, 1]
    assert answers_of("threshold", np.zeros(2)).dtype == np.int64


def test_stack_puts_the_outputs_side_by_side_in_the_order_named() -> None:
    found = {"end": np.array([[3, 4]]), "mask": np.array([[9, 9]]), "start": np.array([[1, 2]])}
    steps = {"stack": {"outputs": ["start", "end"]}}
    assert listed(answers_of(steps, found)) == [[[1, 3], [2, 4]]]
    with pytest.raises(ConfigError, match="output 'start' is not among the model's outputs: end"):
        answers_of(steps, {"end": found["end"]})
    with pytest.raises(ConfigError, match="stack needs outputs by name"):
        answers_of(steps, found["end"])


def test_rows_keep_their_different_lengths() -> None:
    one, two = np.array([1, 5], np.float32), np.array([7, 6, 8], np.float32)
    found = answers_of("none", [one, two])
    assert listed(found) == [one.tolist(), two.tolist()]
    assert row_of(found) == AnswerRow((None,), np.dtype(np.float32))
    assert listed(answers_of("argmax", [one, two])) == [1, 2]
    assert row_of(answers_of("argmax", [one, two])) == AnswerRow((), np.dtype(np.int64))
    by_name: Any = {"start": [one, two], "end": [one * 2, two * 2]}
    stacked = answers_of({"stack": {"outputs": ["start", "end"]}}, by_name)
    assert listed(stacked) == [[[1, 2], [5, 10]], [[7, 14], [6, 12], [8, 16]]]
    assert row_of(stacked) == AnswerRow((None, 2), np.dtype(np.float32))
    assert not not_finite(by_name)
    two[1] = np.nan
    assert not_finite(by_name)
    assert not_finite([one, two])
    plain: Any = [[1.0, 2.0], [3.0]]
    assert not not_finite(plain)


@pytest.mark.parametrize(
    "rows",
    [
        [np.zeros((2, 3)), np.zeros((2, 4))],
        [np.zeros(2), np.zeros((2, 1))],
        [np.zeros(2, np.float32), np.zeros(2)],
        [np.zeros(2), np.zeros(())],
    ],
    ids=["width", "rank", "dtype", "number"],
)
def test_rows_may_differ_in_length_only(rows: list[Any]) -> None:
    with pytest.raises(ValueError, match=r"^answers of one batch differ in more than length"):
        answers_of("none", rows)


HOOK = {"hook": {"file": "hook.py", "function": "hook"}}


def test_a_hook_sees_all_outputs_and_the_indices() -> None:
    def hook(found: Outputs, indices: Sequence[int]) -> Any:
        assert isinstance(found, Mapping)
        return [found["a"][i, :n] for i, n in enumerate(indices)]

    found = made(HOOK, "b", hook).answers({"a": np.array([[1, 2], [3, 4]])}, [1, 2])
    assert listed(found) == [[1], [3, 4]]
    with pytest.raises(ConfigError, match=r"^the hook hook.py was not loaded$"):
        made(HOOK)


def test_a_hook_also_gets_the_only_output_by_its_name() -> None:
    """Bug: from backends that do not name a single output, the hook received a bare array."""

    def hook(found: Outputs, indices: Sequence[int]) -> Any:
        assert isinstance(found, Mapping)
        assert [*found] == ["b"]
        return found["b"] + 1

    rows = np.array([[1, 2], [3, 4]])
    assert listed(made(HOOK, "b", hook).answers(rows, [0, 1])) == [[2, 3], [4, 5]]
    declared = Output.model_validate({"name": "b", "postprocess": HOOK})
    check(declared.postprocess, "b", hook, rows, Batch(2, {}), [0, 1])


def test_hook_behind_another_step_gets_the_result_of_that_step() -> None:
    def hook(found: Any, indices: Sequence[int]) -> Any:
        return found * 10

    steps = ["argmax", HOOK]
    found = made(steps, "b", hook).answers({"b": np.array([[1, 2], [4, 3]])}, [0, 1])
    assert listed(found) == [10, 0]


def head(*boxes: tuple[int, int, int, int, int, float], classes: int = 3) -> Any:
    """Returns (1, 4 + classes, anchors) from boxes of centre x, centre y, width, height, class and score."""
    rows = np.zeros((len(boxes), 4 + classes), np.float32)
    for row, (*place, label, score) in zip(rows, boxes, strict=True):
        row[:4] = place
        row[4 + label] = score
    return rows.T[np.newaxis]


def test_boxes_are_mlperfs_detections() -> None:
    first = head((256, 128, 64, 32, 2, 0.5), (256, 128, 64, 32, 1, 0.75), (0, 0, 64, 64, 0, 0.0))
    second = head((512, 512, 512, 512, 0, 0.25), (0, 0, 1, 1, 0, 0.0), (0, 0, 1, 1, 0, 0.0))
    both = np.concatenate([first, second])
    found = answers_of({"boxes": {"side": 512}}, both, [7, 1500])
    assert listed(found) == [
        [
            [7, 112 / 512, 224 / 512, 144 / 512, 288 / 512, 0.75, 1],
            [7, 112 / 512, 224 / 512, 144 / 512, 288 / 512, 0.5, 2],
        ],
        [[1500, 0.5, 0.5, 1, 1, 0.25, 0]],  # the box is clipped at the edge of the image
    ]
    assert row_of(found) == AnswerRow((None, 7), np.dtype(np.float32))


def test_a_sample_without_a_detection_has_no_rows() -> None:
    found = answers_of("boxes", head((1, 1, 1, 1, 0, 0.0)), [3])
    assert listed(found) == [[]]
    assert row_of(found) == AnswerRow((None, 7), np.dtype(np.float32))


def test_overlapping_boxes_become_one_and_the_number_is_limited() -> None:
    boxes = [(100 + i, 100, 50, 50, 1, 0.9 - i / 100) for i in range(3)]
    others = [(100 * i, 400, 50, 50, 1, 0.2 + i / 10) for i in range(1, 4)]
    found = listed(answers_of({"boxes": {"most": 3}}, head(*boxes, *others), [0]))
    assert [row[5] for row in found[0]] == pytest.approx([0.9, 0.5, 0.4])


@pytest.mark.parametrize("shape", [(1, 8400), (1, 4, 10), (1, 1, 84, 10)])
def test_head_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="a YOLO head is"):
        answers_of("boxes", np.zeros(shape, np.float32), [0])


def test_suppression_of_more_boxes_than_are_compared_at_once() -> None:
    random = np.random.default_rng(5)
    corners = random.integers(0, 60, (700, 2))
    boxes = np.concatenate([corners, corners + random.integers(1, 30, (700, 2))], axis=1)
    labels = random.integers(0, 3, 700)
    wanted = suppressed_one_by_one(boxes, labels, 0.5)
    assert 2 * 64 < len(wanted) < 700
    for most in (5, 150, 700):
        found = suppress(boxes.astype(np.float32), labels, iou=0.5, most=most)
        assert found.tolist() == wanted[:most]


def suppressed_one_by_one(boxes: Any, labels: Any, iou: float) -> list[int]:
    """Applies the definition of suppression box by box, with exact integers."""
    kept: list[int] = []
    for i, (top, left, bottom, right) in enumerate(boxes.tolist()):
        for j in kept:
            a, b, c, d = boxes[j].tolist()
            shared = max(0, min(bottom, c) - max(top, a)) * max(0, min(right, d) - max(left, b))
            union = (bottom - top) * (right - left) + (c - a) * (d - b) - shared
            if labels[i] == labels[j] and shared > iou * union:
                break
        else:
            kept.append(i)
    return kept


@given(
    hnp.arrays(np.int32, st.tuples(st.integers(0, 30), st.just(4)), elements=st.integers(0, 12)),
    st.sampled_from((0.25, 0.5, 1.0)),
    st.data(),
)
def test_suppression_equals_a_comparison_box_by_box(
    places: Any, iou: float, data: st.DataObject
) -> None:
    boxes = np.concatenate([places[:, :2], places[:, :2] + places[:, 2:]], axis=1)
    labels = np.array(
        data.draw(st.lists(st.integers(0, 2), min_size=len(boxes), max_size=len(boxes))), np.int64
    )
    wanted = suppressed_one_by_one(boxes, labels, iou)
    assert suppress(boxes.astype(np.float32), labels, iou=iou, most=99).tolist() == wanted
    assert suppress(boxes.astype(np.float32), labels, iou=iou, most=2).tolist() == wanted[:2]


def checked(steps: object, found: Outputs, image: tuple[int, ...] = (1, 3, 640, 640)) -> None:
    """Runs the check on the first sample, as the harness does before a run."""
    declared = Output.model_validate({"name": "y", "postprocess": steps})
    batch = Batch(1, {"images": np.zeros(image, np.float32)})
    check(declared.postprocess, "y", None, found, batch, [0])


HEAD = np.zeros((1, 84, 10), np.float32)


@pytest.mark.parametrize(
    ("steps", "found", "told"),
    [
        ("argmax", np.zeros(1), "0': argmax takes [n, classes, ...], not float64 of shape [n]"),
        (["argmax", "argmax"], np.zeros((1, 3)), "1': argmax takes [n, classes, ...], not int64 of shape [n]"),
        ("argmax", np.zeros((1, 0)), "0': argmax takes [n, classes, ...], with at least one number per sample, not float64 of shape [n, 0]"),
        ("topk", np.zeros((1, 9, 2)), "0': topk takes [n, classes], not float64 of shape [n, 9, 2]"),
        ("topk", np.zeros((1, 3)), "0': topk.k is 5, but the output has only 3 classes"),
        ("softmax", np.zeros((1, 3), int), "0': softmax takes floats, not int64 of shape [n, 3]"),
        (["argmax", {"shift": {"by": -1}}, "softmax"], np.zeros((1, 3)), "2': softmax takes [n, ..., classes], not int64 of shape [n]"),
        ({"shift": {"by": 1}}, np.array([["a"]]), "0': shift raised"),
        ("threshold", np.zeros((1, 2)), "0': threshold takes one score per sample, not [2]"),
        ("boxes", np.zeros((1, 84), np.float32), "0': boxes takes [n, 4 + classes, anchors], not float32 of shape [n, 84]"),
        ("boxes", np.zeros((1, 4, 9), np.float32), "0': boxes raised ValueError for float32 of shape [n, 4, 9]: a YOLO head is"),
        ({"boxes": {"side": 320}}, HEAD, "0': boxes.side is 320, but the input 'images' is [3, 640, 640]: its sides must equal boxes.side"),
        ({"stack": {"outputs": ["a", "z"]}}, {"a": HEAD}, "0': the manifest's output 'z' is not among the model's outputs: a"),
        ({"stack": {"outputs": ["a", "b"]}}, HEAD, "0': stack needs outputs by name, but this backend returns a single one"),
        ({"stack": {"outputs": ["a", "b"]}}, {"a": HEAD, "b": HEAD[:, :9]}, "0': stack takes outputs of one shape, but these are a float32 of shape [n, 84, 10], b"),
        ("argmax", [np.array(1.0)], "0': argmax takes [n, classes, ...], not 1 arrays, the first float64 of shape []"),
    ],
)  # fmt: skip
def test_step_that_cannot_take_its_input_is_named_before_the_run(
    steps: object, found: Outputs, told: str
) -> None:
    field = "the manifest's field 'outputs.0.postprocess."
    assert refusal(checked, steps, found).startswith(f"{field}{told}")


@pytest.mark.parametrize(
    ("steps", "found", "image"),
    [
        (["softmax", {"topk": {"k": 3}}, {"shift": {"by": -1}}], np.zeros((1, 9), np.float32), (1, 9)),
        ("boxes", HEAD, (1, 640, 640, 3)),
        ({"boxes": {"side": 416}}, HEAD, (1, 3, 416, 416)),
        ("boxes", HEAD, (1, 9)),
        ("argmax", np.zeros((1, 21, 9, 9)), (1, 3, 9, 9)),
        ("argmax", [np.zeros(4)], (1, 4)),
        ({"stack": {"outputs": ["b", "a"]}}, {"a": HEAD, "b": HEAD}, (1, 9)),
    ],
)  # fmt: skip
def test_steps_that_fit_pass(steps: object, found: Outputs, image: tuple[int, ...]) -> None:
    checked(steps, found, image)


def test_error_in_a_hook_is_reported_as_the_users_code() -> None:
    def hook(found: Outputs, indices: Sequence[int]) -> Any:
        raise KeyError("scores")

    declared = Output.model_validate({"name": "y", "postprocess": HOOK})
    with pytest.raises(
        PluginUnavailable, match=r"^hook.py: hook raised KeyError for y float32 of sh"
    ):
        check(declared.postprocess, "y", hook, HEAD, Batch(1, {}), [0])


def test_answers_that_vary_with_the_input_are_flattened() -> None:
    post = flat(made("none"))
    found = post.answers(np.arange(12).reshape(2, 2, 3), [0, 1])
    assert isinstance(found, Ragged)
    assert listed(found) == [[0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]]
    assert row_of(found) == AnswerRow((None,), np.dtype(np.int64))
    assert largest_bytes(found) == 48
    ragged = flat(made("none")).answers([np.zeros((2, 3)), np.zeros((1, 3))], [0, 1])
    assert [len(row) for row in listed(ragged)] == [6, 3]
    labels = flat(made("argmax"))
    rows = np.array([[0.0, np.nan]])
    assert labels.not_finite(rows, labels.answers(rows, [0]))
    assert not labels.not_finite(np.zeros((2, 3)), labels.answers(np.zeros((2, 3)), [0, 1]))


def test_rows_of_several_batches_give_a_common_shape_or_differ() -> None:
    one, other = AnswerRow((3,), np.dtype(np.float32)), AnswerRow((4,), np.dtype(np.float32))
    assert common_row([one, one]) == one
    assert common_row([one, other]) is None
    with pytest.raises(ValueError, match=r"^answers differ in type .*: float32 and int64$"):
        common_row([one, AnswerRow((3,), np.dtype(np.int64))])
