"""Each metric agrees with MLCommons' script for the same log, and with examples calculated by hand."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.accuracy.cosine import Cosine
from harness.accuracy.dice import Dice
from harness.accuracy.retrieval import Retrieval
from harness.accuracy.rmse import Rmse
from harness.accuracy.squad_f1 import SquadF1, f1_of
from harness.accuracy.top1 import Top1
from harness.accuracy.top5 import Top5
from harness.accuracy.wer import WordErrorRate, edits, joined
from harness.cli.main import main
from harness.core import registry
from harness.loadgen.logs import ACCURACY, AccuracyLogError
from harness.models.manifest.lookup import load_model
from harness.models.manifest.model import MODELS_DIR
from harness.models.manifest.schema import Accuracy
from harness.results.verdict import reasons
from harness.results.verdict.score import compute, label_of
from harness.types import Answer, Metric, Score
from tests.builders.refusals import refusal

OFFICIAL = Path(__file__).parents[2] / "golden" / "accuracy"
PATTERNS = {
    "top1": r"^(?:\{\"accuracy|accuracy)[\": ]*=?\s*([\d\.]+).*",
    "top5": r"^(?:\{\"accuracy|accuracy)[\": ]*=?\s*([\d\.]+).*",
    "map": r".*(?:mAP=|'Total':)\s*([\d.]+)",
    "squad_f1": r"^{[\"\']exact_match[\"\']\:\s*[\d\.]+,\s*[\"\']f1[\"\']\:\s*([\d\.]+)}",
    "dice": r"Accuracy\:\s*mean\s*=\s*([\d\.]+).*",
    "wer": r"Word Error Rate\:.*, accuracy=([0-9\.]+)%",
    "exact_match": r".*'exact_match':\s([\d.]+).*",
    "rouge": r".*'rouge1':\s+'?([\d.]+)'?.*",
}
"""The metrics of the submission checker (constants.py in v6.1)."""


def scored(metric: Metric, answers: Mapping[int, Any], labels: Mapping[int, object]) -> Score:
    """Returns the score of the answers; arrays are converted to bytes, and bytes are used unchanged."""
    rows = [
        Answer(i, row if isinstance(row, bytes) else np.asarray(row).tobytes())
        for i, row in answers.items()
    ]
    return metric.score(rows, labels)


@pytest.mark.parametrize("name", ["top1", "map", "squad_f1", "dice", "wer"])
def test_a_log_gets_the_official_scripts_score(name: str, tmp_path: Path) -> None:
    case = json.loads((OFFICIAL / f"{name}.json").read_text())
    labels = dict(enumerate(case["labels"]))
    (tmp_path / ACCURACY).write_text(json.dumps(case["log"]))
    found = compute(tmp_path, name, case["dtype"], labels)
    assert found.line == case["line"]
    assert (found.metric, found.samples) == (name, len(labels))
    match = re.match(PATTERNS[name], found.line)
    assert match is not None
    value = 100 - found.value if found.lower_is_better else found.value
    assert float(match[1]) == pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("name", ["top1", "map", "squad_f1", "dice", "wer"])
def test_log_without_one_of_its_samples_gives_no_score(name: str, tmp_path: Path) -> None:
    case = json.loads((OFFICIAL / f"{name}.json").read_text())
    left = [row for row in case["log"] if row["qsl_idx"] != 2]
    (tmp_path / ACCURACY).write_text(json.dumps(left))
    with pytest.raises(AccuracyLogError, match=f"of {len(case['labels'])} samples$"):
        compute(tmp_path, name, case["dtype"], dict(enumerate(case["labels"])))


def test_the_best_five_count_for_top5_and_the_first_for_top1() -> None:
    answers = {0: [3, 1, 2, 0, 4, 9], 1: [3, 1, 2, 0, 4, 9], 2: [9, 1, 2, 0, 4, 3], 3: b""}
    labels = dict.fromkeys(answers, 3) | {1: 4}
    first, five = scored(Top1("int64"), answers, labels), scored(Top5("int64"), answers, labels)
    assert (first.value, first.details) == (25.0, {"top5": 50.0})
    assert (five.value, five.details) == (50.0, {"top1": 25.0})
    assert five.line == "accuracy=50.000%, good=2, total=4"
    assert re.match(PATTERNS["top5"], five.line)


def test_top5_of_fewer_than_five_labels_gives_no_score() -> None:
    told = refusal(scored, Top5("int64"), {0: [1, 2, 3]}, {0: 1}, error=ValueError)
    assert told.startswith("top5 needs 5 labels per answer, but the longest answer has 3")


def image(*boxes: tuple[float, float, float, float, int], **more: object) -> dict[str, Any]:
    annotations = [{"bbox": list(box[:4]), "category_id": box[4]} for box in boxes]
    return {"image_id": 7, "width": 200, "height": 100, "annotations": annotations, **more}


def precision(rows: Sequence[Sequence[float]], label: Mapping[str, Any]) -> Score:
    metric = registry.load("metric", "map")("float32")
    return scored(metric, {0: np.array(rows, np.float32)}, {0: label})


def test_a_perfect_detector_has_a_precision_of_all() -> None:
    pytest.importorskip("pycocotools")
    label = image((20, 10, 100, 50, 5), (0, 0, 20, 20, 90))
    rows = [(0, 0.1, 0.1, 0.6, 0.6, 0.9, 0), (0, 0, 0, 0.2, 0.1, 0.8, 1)]
    found = precision(rows, label)
    assert found.value == pytest.approx(100)
    assert found.line == "mAP=100.000%"
    assert found.details == pytest.approx({"map50": 100, "map75": 100})
    half = precision(rows[:1], label)  # the answer finds one of the two categories
    assert half.value == pytest.approx(50)
    assert precision([], label).value == 0
    # Class 1 is the second category in the label's list.
    assert precision(rows, image((20, 10, 100, 50, 5), categories=[5, 6])).value == pytest.approx(
        100
    )


def test_boxes_in_a_padded_input_are_moved_onto_the_image() -> None:
    """An image of 200 x 100 pixels fills the middle half of a square input."""
    pytest.importorskip("pycocotools")
    label = image((20, 10, 100, 50, 5), frame=[0, 0.25, 1, 0.5])
    row = (0, 0.25 + 0.05, 0.1, 0.25 + 0.3, 0.6, 0.9, 0)
    assert precision([row], label).value == pytest.approx(100)
    assert precision([row], image((20, 10, 100, 50, 5))).value == 0


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([(1, 0, 0, 1, 1, 0.5, 0)], "the answer to sample 0 has boxes of other samples"),
        (
            [(0, 0, 0, 1, 1, 0.5, 1)],
            "the answer to sample 0 has classes from 1 to 1, but there are 1 categories",
        ),
        (
            [(0, 0)],
            "the answer to sample 0 has 8 bytes, which is not a multiple of 7 float32 numbers",
        ),
    ],
    ids=["other sample", "other class", "no rows"],
)
def test_impossible_boxes_give_no_score(rows: Any, text: str) -> None:
    with pytest.raises(ValueError, match=f"^{text}"):
        precision(rows, image((0, 0, 10, 10, 5)))


def test_images_without_annotations_have_no_precision() -> None:
    with pytest.raises(ValueError, match="no image has an annotation"):
        precision([], image())


def window(**more: object) -> dict[str, Any]:
    """Returns a window with one position of the question, followed by the positions of three words."""
    return {
        "id": "q",
        "answers": ["New York", "york"],
        "context": "In New York!",
        "offsets": [None, (0, 2), (3, 6), (7, 11), (11, 12)],
        "is_max_context": [False, True, True, True, True],
        **more,
    }


def logits(start: int, end: int, height: float = 5.0, length: int = 5) -> Any:
    made = np.zeros((length, 2), np.float32)
    made[start, 0] = made[end, 1] = height
    return made


@pytest.mark.parametrize(
    ("answer", "exact", "f1"),
    [
        (logits(2, 3), 100, 100),
        (logits(3, 4), 100, 100),  # the answer is "York!", which equals the second right answer
        (logits(1, 3), 0, 80),  # the answer is "In New York"
        # A start inside the question is invalid, so the best remaining start is "In".
        (logits(0, 3), 0, 80),
        (np.zeros((0, 2), np.float32), 0, 0),
    ],
    ids=["right", "other", "longer", "question", "failed"],
)
def test_spans_are_read_out_of_the_context(answer: Any, exact: float, f1: float) -> None:
    found = scored(SquadF1("float32"), {0: answer}, {0: window()})
    assert (found.value, found.details["exact_match"]) == pytest.approx((f1, exact))


def test_the_best_window_of_a_question_answers_it() -> None:
    labels = {0: window(), 1: window(), 2: window(is_max_context=[False] * 5)}
    answers = {2: logits(1, 1, 9), 0: logits(1, 3, 2), 1: logits(2, 3, 4)}
    found = scored(SquadF1("float32"), answers, labels)
    assert (found.value, found.samples, found.details["questions"]) == (100, 3, 1)


def test_span_of_more_than_thirty_positions_is_ignored() -> None:
    words = [(3 * i, 3 * i + 2) for i in range(40)]
    label = window(context="ab " * 40, offsets=words, is_max_context=[True] * 40, answers=["ab"])
    long = logits(0, 30, length=40)
    long[9, 1] = 1.0
    found = scored(SquadF1("float32"), {0: long}, {0: label})
    # The answer consists of the ten words at positions 0 to 9, because the span from 0 to 30 is too long.
    assert found.value == pytest.approx(100 * 2 * 1 / (10 + 1))


@pytest.mark.parametrize(
    ("text", "right", "f1"),
    [
        ("The Cat.", "a cat", 1),
        ("", "", 0),
        ("b c", "c d", 0.5),
        ("x", "y", 0),
        ("c c", "c", 2 / 3),
    ],
)
def test_f1_counts_shared_words(text: str, right: str, f1: float) -> None:
    assert f1_of(text, right) == pytest.approx(f1)


def test_dice_of_one_class_and_of_an_answer_of_another_size() -> None:
    label = np.array([[0, 1], [1, 1]])
    answers = {0: np.array([0, 1, 0, 1], np.uint8), 1: b""}
    found = scored(Dice("uint8"), answers, {0: label, 1: label})
    assert found.value == pytest.approx((2 * 2 / 5 + 0) / 2, abs=1e-6)
    assert list(found.details) == ["class1"]
    with pytest.raises(ValueError, match="have only background"):
        scored(Dice("uint8"), {0: b"\0"}, {0: np.zeros(1)})
    with pytest.raises(ValueError, match="postprocess with argmax"):
        Dice("float32")


@pytest.mark.parametrize(("label", "told"), [([0, 255], "255"), ([0, 1, 7], "1, 7")])
def test_dice_refuses_classes_with_gaps(label: list[int], told: str) -> None:
    """Bug to avoid: an absent class would count as found, so that a model that finds nothing would reach a mean of 1."""
    with pytest.raises(ValueError, match=f"have the classes {told}: number them 1, 2"):
        scored(Dice("uint8"), {0: bytes(len(label))}, {0: np.array(label)})


words = st.lists(st.sampled_from(["to", "day", "today", "a", "y"]), max_size=6)


@given(words, words, words)
def test_edits_are_a_distance(a: list[str], b: list[str], c: list[str]) -> None:
    assert edits(a, a) == 0
    assert edits(a, b) == edits(b, a) >= abs(len(a) - len(b))
    assert edits(a, c) <= edits(a, b) + edits(b, c)


@given(words, words)
def test_joining_loses_no_letter(found: list[str], wanted: list[str]) -> None:
    left, right = joined(found, wanted)
    assert "".join(left) == "".join(found)
    assert "".join(right) == "".join(wanted)


def test_texts_are_bytes_or_symbols() -> None:
    text = "Good day, world"
    padded = np.frombuffer(b"good to day\0\0", np.uint8)
    found = scored(WordErrorRate("uint8"), {0: padded, 1: b""}, {0: text, 1: "two words"})
    # Two of the five words differ: day -> to, world -> day; the other words are equal.
    assert found.value == pytest.approx(100 * 4 / 5)
    assert found.lower_is_better
    assert found.details["word_accuracy"] == pytest.approx(20)
    with pytest.raises(ValueError, match="position beyond the 2 symbols"):
        scored(WordErrorRate("int32"), {0: np.int32(2)}, {0: {"text": "a", "symbols": ["a", "b"]}})
    told = refusal(scored, WordErrorRate("int32"), {0: np.int32(2)}, {0: "a"}, error=ValueError)
    assert "answers must be UTF-8 as uint8, or integers with `symbols`" in told
    with pytest.raises(ValueError, match="is not a string"):
        scored(WordErrorRate("uint8"), {0: b"a"}, {0: 3})


def test_target_of_an_error_rate_is_an_upper_limit() -> None:
    found = scored(WordErrorRate("uint8"), {0: b"one two"}, {0: "one three"})
    assert found.value == 50
    assert not list(reasons.score(found, Accuracy(metric="wer", target=50)))
    (reason,) = reasons.score(found, Accuracy(metric="wer", target=49.5))
    assert reason.text == "accuracy wer is 50.000 %, but the manifest's target is 49.5 %"


def test_rouge_is_the_packages() -> None:
    scorer = pytest.importorskip("rouge_score.rouge_scorer")
    right, text = "The cats sat.\nIt rained all day.", "A cat was sitting\nin the rain"
    metric = registry.load("metric", "rouge")("uint8")
    found = scored(metric, {0: text.encode(), 1: right.encode()}, {0: right, 1: right})
    kinds = ("rouge1", "rouge2", "rougeL", "rougeLsum")
    package = scorer.RougeScorer(kinds, use_stemmer=True).score(right, text)
    wanted = {kind: 50 * (package[kind].fmeasure + 1) for kind in kinds}
    assert found.details == pytest.approx(wanted)
    assert found.value == found.details["rouge1"]
    for kind in kinds:
        match = re.match(rf".*'{kind}':\s+'?([\d.]+)'?.*", found.line)
        assert match is not None
        assert float(match[1]) == pytest.approx(wanted[kind], abs=1e-4)


def test_exact_match_counts_characters_and_not_the_space_around_them() -> None:
    texts = {0: b"0123", 1: b" 42\n", 2: b"1 2", 3: b"12", 4: b""}
    labels: dict[int, object] = {0: "0123", 1: "42", 2: "12", 3: "1 2", 4: "5"}
    found = scored(registry.load("metric", "exact_match")("uint8"), texts, labels)
    assert (found.value, found.samples, found.unit) == (40, 5, "%")
    assert found.details == {"right": 2, "empty": 1}
    match = re.match(PATTERNS["exact_match"], found.line)
    assert match is not None
    assert float(match[1]) == 40


def vector(*values: float) -> Any:
    return np.array(values, np.float32)


def test_rmse_is_the_error_of_numbers_and_its_share() -> None:
    answers = {0: vector(3), 1: vector(1), 2: vector(-2)}
    labels: dict[int, object] = {0: 2, 1: 1.0, 2: np.array([0.0])}
    found = scored(Rmse("float32"), answers, labels)
    assert found.value == pytest.approx(np.sqrt((1 + 0 + 4) / 3))
    assert found.details == pytest.approx({"mae": 1, "r2": 1 - 5 / 2})
    assert found.lower_is_better
    with pytest.raises(
        ValueError, match="the answer to sample 2 is 0 bytes, not one float32 number"
    ):
        scored(Rmse("float32"), {**answers, 2: b""}, labels)
    assert found.line == f"rmse={found.value:.6f}, total=3"


def test_rmse_refuses_labels_and_answers_that_are_not_numbers() -> None:
    with pytest.raises(ValueError, match="the label of sample 1 is 'a': write a number"):
        Rmse("float32").check_labels({0: 1, 1: "a"})
    with pytest.raises(ValueError, match="each answer has 3 numbers"):
        Rmse("float32").check_shape((3,))
    Rmse("float32").check_shape((1,))
    Rmse("float32").check_shape(())


def test_cosine_is_one_for_the_same_direction() -> None:
    answers = {0: vector(3, 4), 1: vector(0, 2), 2: b""}
    labels: dict[int, object] = {0: [6, 8], 1: [1, 0], 2: [1, 0]}
    found = scored(Cosine("float32"), answers, labels)
    assert found.value == pytest.approx(1 / 3)
    assert found.details == {"least": 0}
    with pytest.raises(ValueError, match="an answer has 2 numbers, but its label has 3"):
        scored(Cosine("float32"), answers, {**labels, 0: [1, 2, 3]})


def test_retrieval_is_the_share_found_among_the_nearest_others() -> None:
    angles = np.arange(12) * 0.1
    answers = {i: vector(np.cos(a), np.sin(a)) for i, a in enumerate(angles)}
    labels: dict[int, object] = {i: {"id": f"d{i}"} for i in range(12)}
    # The relevant documents have the ranks 1, 4 and 11.
    labels[0] = {"id": "d0", "relevant": ["d1", "d4", "d11", "d0"]}
    labels[6] = {"id": "d6", "relevant": ["d5", "d7"]}  # d5 and d7 are equally near to d6
    found = scored(Retrieval("float32"), answers, labels)
    assert found.value == pytest.approx(100 * (2 / 4 + 1) / 2)
    assert found.details == pytest.approx(
        {"recall@1": 100 * (1 / 4 + 1 / 2) / 2, "recall@5": 100 * (2 / 4 + 1) / 2}
    )
    with pytest.raises(ValueError, match="no label names relevant samples"):
        scored(Retrieval("float32"), {0: vector(1)}, {0: {"id": 0}})


def test_samples_with_the_same_label_belong_together() -> None:
    """For every kind of label, the score is the same as with explicit ids."""
    random = np.random.default_rng(0)
    kinds = ["a", "b", "b", "c", "a", "b", "a"]
    answers = {i: random.standard_normal(3).astype(np.float32) for i in range(len(kinds))}
    spelt: dict[int, object] = {
        i: {"id": i, "relevant": [j for j, other in enumerate(kinds) if other == kind and i != j]}
        for i, kind in enumerate(kinds)
    }
    wanted = scored(Retrieval("float32"), answers, spelt)
    assert wanted.details["recall@1"] < wanted.details["recall@5"] < wanted.value
    # The only sample of class c has no match, so it is not a query.
    assert wanted.line.endswith("queries=6")
    numbers = {i: ord(kind) for i, kind in enumerate(kinds)}
    for labels in (dict(enumerate(kinds)), numbers):
        assert scored(Retrieval("float32"), answers, labels) == wanted
    with pytest.raises(ValueError, match="no label names relevant samples"):
        scored(Retrieval("float32"), {0: answers[0], 1: answers[1]}, {0: "a", 1: "b"})
    mixed = {0: "a", 1: {"id": 1}}
    told = refusal(
        scored, Retrieval("float32"), {0: answers[0], 1: answers[1]}, mixed, error=ValueError
    )
    assert "needs labels of one kind: mappings of `id` and `relevant`, numbers or strings" in told


@pytest.mark.parametrize("name", ["wer", "rouge", "exact_match"])
def test_integers_with_symbols_score_like_their_texts(name: str) -> None:
    if name == "rouge":
        pytest.importorskip("rouge_score")
    symbols = ["", " ", *"abcdehlorstuw"]
    texts = {0: "the cold sea", 1: "hello world", 2: "slow boat"}
    right: dict[int, object] = {0: "the old sea", 1: "hello word us", 2: "slow boat"}
    spelt = {i: [symbols.index(letter) for letter in text] + [0, 0] for i, text in texts.items()}
    with_symbols = {i: {"text": text, "symbols": symbols} for i, text in right.items()}
    metric = registry.load("metric", name)
    ids = {i: np.array(s, np.int32) for i, s in spelt.items()}
    found = scored(metric("int32"), ids, with_symbols)
    plain = scored(metric("uint8"), {i: t.encode() for i, t in texts.items()}, right)
    assert found == plain
    assert 0 < found.value < 100


def test_a_manifests_symbols_require_labels_that_are_texts(tmp_path: Path) -> None:
    content = yaml.safe_load((MODELS_DIR / "digits.yaml").read_text())
    content["accuracy"] = {"metric": "wer", "target": 5, "symbols": ["", " ", "a"]}
    (tmp_path / "m.yaml").write_text(yaml.safe_dump(content))
    model = load_model(str(tmp_path / "m.yaml"))
    texts: Any = SimpleNamespace(label=lambda _: "a a")
    numbers: Any = SimpleNamespace(label=lambda _: 3)
    assert label_of(texts, 0, model) == {"text": "a a", "symbols": ("", " ", "a")}
    assert label_of(numbers, 0, model) == 3
    assert label_of(texts, 0, load_model("digits")) == "a a"


def test_pieces_of_a_language_model_spell_token_ids_and_not_texts() -> None:
    model = load_model("tinylm")
    assert model.generation is not None
    right: Any = SimpleNamespace(label=lambda _: "21")
    label = label_of(right, 0, model, "int32")
    assert label == {"text": "21", "symbols": model.generation.pieces}
    metric = registry.load("metric", "exact_match")
    ids = np.array([7, 6, 0], np.int32)
    assert scored(metric("int32"), {0: ids}, {0: label}).value == 100
    text = label_of(right, 0, model, "uint8")
    assert scored(metric("uint8"), {0: b"21"}, {0: text}).value == 100


_OWN = """
from harness.types import Score


class Zeros:
    def __init__(self, dtype):
        pass

    def score(self, answers, labels):
        answers = list(answers)
        zeros = 100 * sum(not any(payload) for _, payload in answers) / len(answers)
        count = len(answers)
        return Score(metric="zeros", value=zeros, unit="%", samples=count, line=f"zeros={zeros}")
"""


def test_a_metric_of_ten_lines_in_a_file_scores_a_run_and_its_check(tmp_path: Path) -> None:
    """Checks requirement D51: a new metric needs no change in the harness, and runs after the timed run."""
    (tmp_path / "zeros.py").write_text(_OWN)
    out = tmp_path / "run"
    words = [
        "--scenario",
        "offline",
        "--mode",
        "accuracy",
        "--quiet",
        "--no-report",
        "--no-metrics",
    ]
    assert main([*words, "--metric", f"{tmp_path}/zeros.py:Zeros", "--out", str(out)]) == 0
    accuracy = json.loads((out / "result.json").read_text())["accuracy"]
    assert (accuracy["metric"], accuracy["samples"]) == ("zeros", 500)
    assert 8 <= accuracy["value"] <= 12  # a constant answer is right for about one of ten digits
    assert main(["check", str(out)]) == 0


@pytest.mark.parametrize(
    ("spoken", "right", "rate"),
    [
        ("Mr. Smith paid twenty-one dollars", "mister smith paid $21", 0),
        ("he can't see the colour, uh, there", "He cannot see the color there.", 0),
        ("two hundred and five cats", "205 dogs", 50),
        ("10% of 1,000", "ten percent of one thousand", 0),
    ],
)
def test_whispers_normaliser_comes_before_the_word_errors(
    spoken: str, right: str, rate: float
) -> None:
    pytest.importorskip("whisper_normalizer")
    from harness.accuracy.wer_whisper import WhisperWordErrorRate

    found = scored(WhisperWordErrorRate("uint8"), {0: spoken.encode()}, {0: right})
    assert (found.metric, found.value, found.lower_is_better) == ("wer-whisper", rate, True)
    assert scored(WordErrorRate("uint8"), {0: spoken.encode()}, {0: right}).value > rate


@given(
    st.lists(st.sampled_from(["a", "b", "c", "d"])),
    st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1),
)
def test_word_errors_are_those_of_jiwer(spoken: list[str], right: list[str]) -> None:
    jiwer = pytest.importorskip("jiwer")
    found = jiwer.process_words(" ".join(right), " ".join(spoken))
    assert edits(spoken, right) == found.substitutions + found.deletions + found.insertions
