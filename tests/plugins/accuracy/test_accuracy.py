"""LoadGen's accuracy log and the labels give one score; missing or wrong data give none."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.accuracy.top1 import Top1
from harness.core import registry
from harness.datasets.digits import DigitsDataset
from harness.loadgen.logs import ACCURACY, AccuracyLogError
from harness.results.verdict.score import compute
from harness.submit.rules.tree.rounds import load_round
from harness.types import Answer, DatasetSetup, Score
from tests.builders.support import GOLDEN, SAMPLES, SCENARIOS


@pytest.fixture(scope="module")
def labels() -> dict[int, object]:
    digits = DigitsDataset(DatasetSetup())
    return {i: digits.label(i) for i in range(SAMPLES)}


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_golden_accuracy_log_gives_the_score_of_its_run(
    scenario: str, labels: dict[int, object]
) -> None:
    found = compute(GOLDEN / scenario / "accuracy", "top1", "int64", labels)
    assert (found.metric, found.value, found.unit, found.samples) == ("top1", 100.0, "%", SAMPLES)
    assert found.line == "accuracy=100.000%, good=20, total=20"


def test_a_score_of_numpy_values_and_odd_texts_is_stored_as_plain_values(
    labels: dict[int, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bug: a float32 became a text in result.json, and a line break in a text added a row to the printed answer."""

    class Odd:
        def __init__(self, dtype: str) -> None:
            pass

        def score(self, _answers: object, labels: dict[int, object]) -> Score:
            value: Any = np.float32(0.5)
            return Score(
                metric="a\nb",
                value=value,
                unit="%\n",
                samples=len(labels),
                line="x\ny",
                details={"z": value},
            )

    monkeypatch.setattr(registry, "load", lambda *_: Odd)
    found = compute(GOLDEN / "server" / "accuracy", "odd", "int64", labels)
    assert json.dumps([found.value, found.details]) == '[0.5, {"z": 0.5}]'
    assert (found.metric, found.unit, found.line) == ("a b", "% ", "x y")


@pytest.mark.parametrize("total", [SAMPLES - 1, SAMPLES + 1])
def test_log_that_answers_other_samples_gives_no_score(total: int) -> None:
    folder = GOLDEN / "server" / "accuracy"
    with pytest.raises(AccuracyLogError) as caught:
        compute(folder, "top1", "int64", dict.fromkeys(range(total), 0))
    assert str(caught.value) == f"{folder / ACCURACY} contains answers to 20 of {total} samples"


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=50),
    st.sampled_from(("int64", "int32", "uint8", "float32")),
    st.data(),
)
def test_top1_is_the_share_of_right_labels_in_percent(
    labels: list[int], dtype: str, data: st.DataObject
) -> None:
    given_labels = data.draw(
        st.lists(st.integers(0, 9), min_size=len(labels), max_size=len(labels))
    )
    answers = [Answer(i, np.array(x, dtype).tobytes()) for i, x in enumerate(given_labels)]
    good = sum(a == b for a, b in zip(labels, given_labels, strict=True))
    found = Top1(dtype).score(answers, dict(enumerate(labels)))
    assert found.value == pytest.approx(100 * good / len(labels))
    assert found.samples == len(labels)


@pytest.mark.parametrize(
    ("payload", "dtype"),
    [
        (b"", "int64"),
        (b"\x03", "int64"),
        (bytes(12), "int64"),
        (bytes(8), "float32"),
        (np.float32("nan").tobytes(), "float32"),
        (np.float32("inf").tobytes(), "float32"),
    ],
    ids=["empty", "short", "long", "scores", "nan", "inf"],
)
@pytest.mark.parametrize("label", [0, 3])
def test_answer_that_is_not_a_label_is_wrong(payload: bytes, dtype: str, label: int) -> None:
    right = Answer(1, np.array(4, dtype).tobytes())
    assert Top1(dtype).score([Answer(0, payload), right], {0: label, 1: 4}).value == 50.0
    with pytest.raises(ValueError, match="no answer is a label, because top1 needs one "):
        Top1(dtype).score([Answer(0, payload)], {0: label})


@pytest.mark.parametrize(
    ("shape", "told"), [([2, 2], "2 x 2"), ([1, 1], "1 x 1"), ([None, 3], r"\? x 3")]
)
def test_class_per_pixel_is_refused_as_labels(
    shape: list[int | None], told: str, tmp_path: Path
) -> None:
    """Bug: if the pixel classes of an image were all different, the first class was scored."""
    answer = np.arange(4).tobytes().hex()
    (tmp_path / ACCURACY).write_text(json.dumps([{"seq_id": 0, "qsl_idx": 0, "data": answer}]))
    with pytest.raises(
        ValueError, match=rf"top1 needs one label .*, but each answer has {told} numbers:"
    ):
        compute(tmp_path, "top1", "int64", {0: 0}, shape)
    # The shape is [4] from topk, and None from a hook or from a harness that did not report the shape.
    for good in ([4], [None], None):
        assert compute(tmp_path, "top1", "int64", {0: 0}, good).value == 100.0


def test_text_labels_are_refused_and_do_not_score_zero() -> None:
    with pytest.raises(
        ValueError, match="labels that are class numbers, but the label of sample 0 is 'cat'"
    ):
        Top1("int64").score([Answer(0, bytes(8))], {0: "cat"})


def test_repeated_label_in_an_answer_is_refused() -> None:
    """Bug: scores of a uint8 model were mistaken for a list of labels with the best label first."""
    with pytest.raises(ValueError, match=r"has the same label twice, \[3, 0, 0, 7\]: .* `hook`"):
        Top1("uint8").score([Answer(0, bytes([3, 0, 0, 7]))], {0: 3})


@pytest.mark.parametrize("told", [True, False])
def test_loadgens_token_counts_appear_beside_the_score(tmp_path: Path, told: bool) -> None:
    """The first answer to a sample counts, both in the token counts and in the score."""
    answers = [(0, 3), (1, 8), (0, 90)]
    rows = [
        {
            "seq_id": i,
            "qsl_idx": sample,
            "data": np.int64(sample).tobytes().hex(),
            **({"token_count": count} if told else {}),
        }
        for i, (sample, count) in enumerate(answers)
    ]
    (tmp_path / ACCURACY).write_text(json.dumps(rows))
    found = compute(tmp_path, "top1", "int64", {0: 0, 1: 1})
    line = "accuracy=100.000%, good=2, total=2"
    tokens = " {'gen_tok_len': 11, 'tokens_per_sample': 5.5000}"
    assert found.line == f"{line}{tokens if told else ''}"
    assert ("tokens_per_sample", 5.5) in found.details.items() or not told
    scores = load_round().scores(found.line, load_round().benchmarks["llama2-70b-99.9"].limits)
    assert scores == ({"TOKENS_PER_SAMPLE": [5.5]} if told else {})
