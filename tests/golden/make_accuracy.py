"""Records what MLCommons' scripts print for accuracy logs; run it with `python tests/golden/make_accuracy.py CHECKOUT`.

CHECKOUT: a checkout of mlcommons/inference. accuracy/<metric>.json: a seeded log as LoadGen writes it (with duplicates
if the script removes them), the labels, and the official numbers. The scripts for top1 and map run completely; from the
other scripts, only the functions that compute the score run. Packages that the scripts import are replaced with empty
modules, and BERT's tokenizer with a simple one. Whisper's normaliser is not used.
"""

import contextlib
import io
import json
import re
import runpy
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, patch

import numpy as np

HERE = Path(__file__).parent / "accuracy"
COMMIT = "b66003e1"
CATEGORIES = [1, 3, 17, 90]
LETTERS = " abcdefghijklmnopqrstuvwxyz'0123456789$%+-"
TEXT = """the a of Paris, town-hall built in 1889. by Gustave Eiffel; (who) loved iron towers and an
Opera's music everywhere unbelievably often"""
SPOKEN = "to day i can not see the rain bow over town hall some times it's one"


def main() -> None:
    checkout = Path(sys.argv[1])
    for name, make in (
        ("top1", _top1),
        ("map", _map),
        ("squad_f1", _squad),
        ("dice", _dice),
        ("wer", _wer),
    ):
        case = make(checkout, np.random.default_rng(7))
        text = json.dumps({"commit": COMMIT, **case}, separators=(",", ":"))
        (HERE / f"{name}.json").write_text(text + "\n")


def _log(payloads: Mapping[int, bytes], order: Sequence[int]) -> list[dict[str, Any]]:
    return [
        {"seq_id": n, "qsl_idx": i, "data": payloads[i].hex().upper()} for n, i in enumerate(order)
    ]


def _shuffled(random: Any, count: int, duplicates: int) -> list[int]:
    order = random.permutation(count).tolist()
    return [*order, *order[:duplicates]]


def _printed(script: Path, *arguments: str) -> str:
    """Returns the output of a whole script, run with arguments."""
    said = io.StringIO()
    with patch.object(sys, "argv", [str(script), *arguments]), contextlib.redirect_stdout(said):
        runpy.run_path(str(script), run_name="__main__")
    return said.getvalue()


class _Empty(ModuleType):
    def __getattr__(self, name: str) -> Any:
        return MagicMock()


def _loaded(script: Path, *empty: str) -> Any:
    """Returns a script's functions, with empty modules in place of packages that are not needed."""
    stand_ins: dict[str, Any] = {name: _Empty(name) for name in empty}
    stand_ins["six"] = SimpleNamespace(iteritems=lambda d: d.items())
    with (
        patch.dict(sys.modules, stand_ins),
        patch.object(sys, "path", [str(script.parent), *sys.path]),
    ):
        return SimpleNamespace(**runpy.run_path(str(script)))


def _top1(checkout: Path, random: Any) -> dict[str, Any]:
    labels = random.integers(0, 10, 50).tolist()
    answers = {
        i: np.array([random.choice([x, 0])], np.int64).tobytes() for i, x in enumerate(labels)
    }
    log = _log(answers, _shuffled(random, 50, 7))
    with tempfile.TemporaryDirectory() as folder:
        names, file = Path(folder) / "val_map.txt", Path(folder) / "log.json"
        names.write_text("".join(f"{i}.jpg {label}\n" for i, label in enumerate(labels)))
        file.write_text(json.dumps(log))
        said = _printed(
            checkout / "vision/classification_and_detection/tools/accuracy-imagenet.py",
            "--mlperf-accuracy-file", str(file), "--imagenet-val-file", str(names),
            "--dtype", "int64",
        )  # fmt: skip
    return {"dtype": "int64", "labels": labels, "log": log, "line": said.strip()}


def _map(checkout: Path, random: Any) -> dict[str, Any]:
    """The script expects category ids and classes that start at 1, whereas our classes start at 0."""
    labels = [_image(random, i) for i in range(12)]
    answers = {i: _boxes(random, i, label) for i, label in enumerate(labels)}
    answers[3] = b""
    order = _shuffled(random, 12, 4)
    official = {i: _with_categories(payload) for i, payload in answers.items()}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "annotations").mkdir()
        truth, file = Path(folder) / "annotations/instances_val2017.json", Path(folder) / "log.json"
        truth.write_text(json.dumps(_coco(labels)))
        file.write_text(json.dumps(_log(official, order)))
        said = _printed(
            checkout / "vision/classification_and_detection/tools/accuracy-coco.py",
            "--mlperf-accuracy-file", str(file), "--coco-dir", folder,
            "--output-file", str(Path(folder) / "out.json"),
        )  # fmt: skip
    log = _log(answers, order)
    return {"dtype": "float32", "labels": labels, "log": log, "line": said.strip().splitlines()[-1]}


def _image(random: Any, index: int) -> dict[str, Any]:
    width, height = random.integers(200, 640, 2).tolist()
    annotations = []
    for n in range(int(random.integers(1, 6))):
        x, y = random.uniform(0, 0.6, 2) * (width, height)
        w, h = random.uniform(0.05, 0.4, 2) * (width, height)
        annotations.append(
            {
                "bbox": [round(float(v), 2) for v in (x, y, w, h)],
                "category_id": CATEGORIES[(index + n) % len(CATEGORIES)],
                "iscrowd": int(n == 4),
                "area": round(float(w * h * 0.7), 2),
            }
        )
    return {
        "image_id": 1000 + 7 * index,
        "width": width,
        "height": height,
        "annotations": annotations,
    }


def _boxes(random: Any, index: int, label: Mapping[str, Any]) -> bytes:
    """Returns the annotated boxes slightly moved, some of them with a wrong class, and boxes without an object."""
    rows = []
    for annotation in label["annotations"]:
        x, y, w, h = annotation["bbox"] + random.normal(0, 8, 4)
        class_id = CATEGORIES.index(annotation["category_id"])
        if random.random() < 0.2:
            class_id = int(random.integers(len(CATEGORIES)))
        rows.append((y, x, y + abs(h), x + abs(w), random.uniform(0.3, 1), class_id))
    for _ in range(3):
        y, x = random.uniform(0, 150, 2)
        rows.append((y, x, y + 40, x + 40, random.uniform(0, 0.6), int(random.integers(4))))
    made = np.array(rows, np.float32)
    made[:, [0, 2]] /= label["height"]
    made[:, [1, 3]] /= label["width"]
    return np.insert(made, 0, index, axis=1).astype(np.float32).tobytes()


def _with_categories(payload: bytes) -> bytes:
    rows = np.frombuffer(payload, np.float32).reshape(-1, 7).copy()
    rows[:, 6] = np.array(CATEGORIES)[rows[:, 6].astype(int)]
    return rows.tobytes()


def _coco(labels: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    annotations = [
        {**annotation, "image_id": label["image_id"]}
        for label in labels
        for annotation in label["annotations"]
    ]
    return {
        "images": [
            {"id": x["image_id"], "width": x["width"], "height": x["height"], "file_name": ""}
            for x in labels
        ],
        "annotations": [{**a, "id": n} for n, a in enumerate(annotations, 1)],
        "categories": [{"id": category} for category in CATEGORIES],
    }


class _BasicTokenizer:
    """Lower-cases the text and splits off punctuation; ignores accents, because our contexts have none."""

    def __init__(self, **_: object) -> None:
        pass

    @staticmethod
    def tokenize(text: str) -> list[str]:
        return re.findall(r"\w+|[^\w\s]", text.lower())


def _squad(checkout: Path, random: Any) -> dict[str, Any]:
    script = _loaded(
        checkout / "language/bert/accuracy-squad.py",
        "pkg_resources", "transformers", "tensorflow", "tokenization", "create_squad_data",
    )  # fmt: skip
    script.write_predictions.__globals__["tokenization"] = SimpleNamespace(
        BasicTokenizer=_BasicTokenizer
    )
    questions = [_question(random, n) for n in range(25)]
    features = [f for n, question in enumerate(questions) for f in _windows(question, n)]
    for n, feature in enumerate(features):
        feature.unique_id = n
    answers = {n: _logits(random, feature) for n, feature in enumerate(features)}
    log = _log(answers, _shuffled(random, len(features), 0))
    evaluate = runpy.run_path(str(checkout / "language/bert/evaluate_v1.1.py"))["evaluate"]
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        file, predicted = Path(folder) / "log.json", Path(folder) / "predictions.json"
        file.write_text(json.dumps(log))
        results = script.load_loadgen_log(str(file), features)
        script.write_predictions(questions, features, results, 20, 30, True, str(predicted))
        predictions = json.loads(predicted.read_text())
    paragraphs = [
        {"qas": [{"id": q.qas_id, "answers": [{"text": text} for text in q.answers]}]}
        for q in questions
    ]
    found = evaluate([{"paragraphs": paragraphs}], predictions)
    labels = [
        {
            "id": questions[f.example_index].qas_id,
            "answers": questions[f.example_index].answers,
            "context": questions[f.example_index].context,
            "offsets": f.offsets,
            "is_max_context": [f.token_is_max_context.get(i, False) for i in range(len(f.tokens))],
        }
        for f in features
    ]
    return {"dtype": "float32", "labels": labels, "log": log, "line": json.dumps(found)}


def _question(random: Any, number: int) -> Any:
    words = random.choice(TEXT.split(), int(random.integers(12, 60))).tolist()
    first = int(random.integers(0, len(words) - 4))
    answers = [" ".join(words[first : first + 3]), words[first + 1].strip(".,;()")]
    return SimpleNamespace(
        qas_id=f"q{number}", context=" ".join(words), doc_tokens=words, answers=answers, first=first
    )


def _windows(question: Any, number: int) -> list[Any]:
    """Returns windows with four positions before the context, 24 positions of the context each, and a stride of 16."""
    pieces: list[tuple[str, int, tuple[int, int]]] = []
    at = 0
    for n, word in enumerate(question.doc_tokens):
        for match in re.finditer(r"\w+|[^\w\s]", word):
            for start in range(match.start(), match.end(), 5):
                end = min(start + 5, match.end())
                mark = "" if start == match.start() else "##"
                pieces.append((mark + word[start:end].lower(), n, (at + start, at + end)))
        at += len(word) + 1
    starts = range(0, max(1, len(pieces) - 8), 16)
    found = []
    for start in starts:
        part = pieces[start : start + 24]
        best = {
            4 + i: start == max(starts, key=lambda s, p=start + i: _context(s, p, len(pieces)))  # type: ignore[misc]
            for i in range(len(part))
        }
        found.append(
            SimpleNamespace(
                example_index=number,
                tokens=["[CLS]", "what", "?", "[SEP]", *(p[0] for p in part), "[SEP]"],
                token_to_orig_map={4 + i: p[1] for i, p in enumerate(part)},
                token_is_max_context=best,
                offsets=[None] * 4 + [list(p[2]) for p in part] + [None],
                gold=[4 + i for i, p in enumerate(part) if 0 <= p[1] - question.first < 3],
            )
        )
    return found


def _context(start: int, position: int, total: int) -> float:
    """Returns how much context a position has in a window: the number of positions on its left or on its right,
    whichever is smaller.
    """
    end = min(start + 24, total)
    if not start <= position < end:
        return -1
    return min(position - start, end - 1 - position) + 0.01 * (end - start)


def _logits(random: Any, feature: Any) -> bytes:
    logits = random.normal(0, 2, (len(feature.tokens), 2)).astype(np.float32)
    if feature.gold and random.random() < 0.7:
        logits[feature.gold[0], 0] += 5
        logits[feature.gold[-1], 1] += 5
    return bytes(logits.tobytes())


def _dice(checkout: Path, random: Any) -> dict[str, Any]:
    script = _loaded(
        checkout / "vision/medical_imaging/3d-unet-kits19/accuracy_kits.py", "nibabel", "pandas"
    )
    labels = [random.integers(0, 3, (4, 5, int(n))) for n in random.integers(3, 9, 6)]
    labels[2][labels[2] == 2] = 0  # this label has no tumour
    given = [np.where(random.random(x.shape) < 0.7, x, 0).astype(np.uint8) for x in labels]
    given[2][:] = 0
    each = [
        script.get_dice_score("", answer[np.newaxis], label[np.newaxis])[1]
        for answer, label in zip(given, labels, strict=True)
    ]
    kidney, tumor = np.mean(each, axis=0)
    composite = np.mean([np.mean(one) for one in each])
    return {
        "dtype": "uint8",
        "labels": [label.tolist() for label in labels],
        "log": _log({i: x.tobytes() for i, x in enumerate(given)}, _shuffled(random, 6, 0)),
        "line": f"Accuracy: mean = {composite:.5f}, kidney = {kidney:.4f}, tumor = {tumor:.4f}",
    }


def _wer(checkout: Path, random: Any) -> dict[str, Any]:
    """The script's functions normalise the texts without Whisper's normaliser, which is a separate package."""
    right = [random.choice(SPOKEN.split(), int(random.integers(3, 12))).tolist() for _ in range(15)]
    spoken = [_misheard(random, text) for text in right]
    symbols = list(LETTERS)
    answers = {
        i: np.array([symbols.index(c) for c in " ".join(text)], np.int64).tobytes()
        for i, text in enumerate(spoken)
    }
    script = _loaded(
        checkout / "speech2text/accuracy_eval.py", "whisper.normalizers", "whisper", "manifest"
    )
    script.word_error_rate.__globals__["EnglishTextNormalizer"] = lambda: str
    rate, _, _ = script.word_error_rate(
        [" ".join(text) for text in spoken], [" ".join(text) for text in right]
    )
    return {
        "dtype": "int64",
        "labels": [{"text": " ".join(text), "symbols": symbols} for text in right],
        "log": _log(answers, _shuffled(random, 15, 0)),
        "line": f"Word Error Rate: {rate * 100:.4f}%, accuracy={(1 - rate) * 100:.4f}%",
    }


def _misheard(random: Any, words: Sequence[str]) -> list[str]:
    found: list[str] = []
    for word in words:
        chance = random.random()
        if chance < 0.1:
            continue
        if chance < 0.3 and found:
            found[-1] += word
        elif chance < 0.4:
            found += [word, "um"]
        else:
            found.append("they" if chance < 0.5 else word)
    return found


if __name__ == "__main__":
    main()
