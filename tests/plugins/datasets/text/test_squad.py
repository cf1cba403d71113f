"""SQuAD: MLPerf's windows, recomputed with plain loops; every error names its place in the file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from onnx import helper

from harness.models.manifest.files import sha256_of
from harness.models.steps.steps import PREPROCESS
from harness.types import DatasetSetup, Step, TensorSpec
from tests.builders.models import odd_files
from tests.builders.models.odd_files import FLOAT, INT64, value
from tests.builders.refusals import refusal, refusals
from tests.faults.command import run

pytest.importorskip("tokenizers")

from harness.datasets.parts.wordpiece import Wordpiece
from harness.datasets.text.squad import SquadDataset, best_windows, windows

VOCAB = (
    "[PAD]", "[UNK]", "[CLS]", "[SEP]", "who", "what", "sat", "the", "cat", "##s", "caf", "##e",
    "mat", "##ter", "on", "(", ")", "-", ",", ".", "?", "1895", "a", "b", "##b",
)  # fmt: skip
WORDS = ("The", "cats", "Cafés", "(1895-1895).", "matter", "sat,", "on", "zebra", "abb")
GIVES = ("ids", "mask", "types")
SMALL = {"max_length": 24, "stride": 6, "max_query_length": 5}


def steps(**options: Any) -> dict[str, tuple[Step, ...]]:
    made = PREPROCESS["tokenise"]
    return {
        name: (
            Step(
                "tokenise",
                made.model_validate({"vocab": "vocab.txt", **SMALL, **options, "gives": name}).model_dump(),
            ),
        )
        for name in GIVES
    }  # fmt: skip


def setup(folder: Path, length: Any = 24, **more: Any) -> DatasetSetup:
    inputs = tuple(TensorSpec(name, "int64", ("batch", length)) for name in GIVES)
    return DatasetSetup(**{"inputs": inputs, "data_dir": folder, "steps": steps(), **more})


def question(name: str, text: str = "Who sat?", *answers: str) -> dict[str, Any]:
    told = [{"text": a, "answer_start": 0} for a in answers or ("The cats",)]
    return {"id": name, "question": text, "answers": told}


def write(folder: Path, *paragraphs: Mapping[str, Any]) -> Path:
    content = {"version": "1.1", "data": [{"title": "t", "paragraphs": list(paragraphs)}]}
    (folder / "vocab.txt").write_text("\n".join(VOCAB) + "\n")
    path = folder / "dev-v1.1.json"
    path.write_text(json.dumps(content))
    return path


def generated(folder: Path) -> list[tuple[str, str, str]]:
    """Returns (id, question, context) with contexts of 1 to 60 words, mostly longer than one window."""
    random = np.random.default_rng(7)
    paragraphs, asked = [], []
    for p in range(12):
        gaps = random.choice([" ", "  ", "\n", "\u202f", "\t"], 60)
        words = random.choice(WORDS, random.integers(1, 60))
        context = "".join(f"{w}{g}" for w, g in zip(words, gaps, strict=False))
        qas = []
        for q in range(2):
            text = " ".join(random.choice(WORDS, random.integers(1, 6))) + "?"
            asked.append((f"{p}-{q}", text, context))
            qas.append(question(f"{p}-{q}", text))
        paragraphs.append({"context": context, "qas": qas})
    write(folder, *paragraphs)
    return asked


def test_windows_and_tokens_match_the_reference(tmp_path: Path) -> None:
    asked = generated(tmp_path)
    tokens = tokens_of(tmp_path)
    expected = []
    for name, text, context in asked:
        query = tokens(text)[: SMALL["max_query_length"]]
        document = [piece for word in context.split() for piece in tokens(word)]
        room = SMALL["max_length"] - len(query) - 3
        start = 0
        while True:
            part = document[start : start + room]
            expected.append((name, query, start, part, len(document), room))
            if start + room >= len(document):
                break
            start += min(room, SMALL["stride"])
    data = SquadDataset(setup(tmp_path))
    assert len(data) == len(expected) > 100
    data.load(range(len(data)))
    batch = data.batch(range(len(data))).inputs
    for i, (name, query, _, part, _, _) in enumerate(expected):
        pieces = ["[CLS]", *query, "[SEP]", *part, "[SEP]"]
        padding = [0] * (SMALL["max_length"] - len(pieces))
        assert batch["ids"][i].tolist() == [VOCAB.index(p) for p in pieces] + padding
        assert batch["mask"][i].tolist() == [1] * len(pieces) + padding
        types = [0] * (len(query) + 2) + [1] * (len(part) + 1) + padding
        assert batch["types"][i].tolist() == types
        label: Any = data.label(i)
        assert (label["id"], label["tokens"]) == (name, pieces)


def tokens_of(folder: Path) -> Any:
    pieces = Wordpiece(folder / "vocab.txt", lower=True)
    return lambda text: list(pieces.encode([text])[0].tokens)


def test_a_label_places_each_piece_in_the_context(tmp_path: Path) -> None:
    generated(tmp_path)
    data = SquadDataset(setup(tmp_path))
    for i in range(len(data)):
        label: Any = data.label(i)
        assert (label["answers"], label["lower"]) == (("The cats",), True)
        first = label["tokens"].index("[SEP]") + 1
        end = len(label["tokens"]) - 1
        assert len(label["offsets"]) == len(label["is_max_context"]) == SMALL["max_length"]
        assert [o is not None for o in label["offsets"]] == [
            first <= at < end for at in range(SMALL["max_length"])
        ]
        for at in range(first, end):
            shown = label["context"][slice(*label["offsets"][at])].lower().replace("é", "e")
            assert label["tokens"][at] in (shown, f"##{shown}", "[UNK]")


def test_each_piece_has_its_most_context_in_one_window(tmp_path: Path) -> None:
    generated(tmp_path)
    data = SquadDataset(setup(tmp_path))
    shown: dict[tuple[str, Any], int] = {}
    for i in range(len(data)):
        label: Any = data.label(i)
        for offset, best in zip(label["offsets"], label["is_max_context"], strict=True):
            if offset is None:
                assert not best
            else:
                key = label["id"], offset
                shown[key] = shown.get(key, 0) + best
    assert set(shown.values()) == {1}


@given(st.integers(1, 80), st.integers(1, 30), st.integers(1, 40))
def test_the_best_window_is_the_reference_rule(total: int, room: int, stride: int) -> None:
    parts = windows(total, room, stride)
    best = best_windows(parts)
    assert len(best) == total
    for at in range(total):
        scores = [
            min(at - start, start + length - 1 - at) + 0.01 * length
            if start <= at < start + length
            else float("-inf")
            for start, length in parts
        ]
        assert best[at] == scores.index(max(scores))


def test_inputs_take_the_array_and_the_type_that_they_declare(tmp_path: Path) -> None:
    write(tmp_path, {"context": "the cats sat", "qas": [question("1")]})
    spec = TensorSpec("types", "int32", ("batch", "length"))
    data = SquadDataset(setup(tmp_path, inputs=(spec,)))
    data.load([0, 0])
    batch = data.batch([0]).inputs
    assert list(batch) == ["types"]
    assert (str(batch["types"].dtype), batch["types"].shape) == ("int32", (1, 24))


def test_every_fault_of_the_file_is_reported_with_its_place(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        {"context": "", "qas": [question("1"), {"id": "1", "question": 3, "answers": [{}]}]},
        {"context": "a", "qas": [{"question": "a", "answers": []}]},
        {"context": "b"},
    )
    at = "data[0].paragraphs"
    assert refusals(SquadDataset, setup(tmp_path)) == [
        f"{path}: {told}"
        for told in (
            f"{at}[0] has no string 'context'",
            f"{at}[0].qas[1].answers[0] has no string 'text'",
            f"{at}[0].qas[1] repeats the id '1' of {at}[0].qas[0]",
            f"{at}[0].qas[1] has no string 'question'",
            f"{at}[1].qas[0] has no string 'id'",
            f"{at}[1].qas[0] has no answers: only SQuAD v1.1 is read, not v2.0",
            f"{at}[2] has no list 'qas'",
        )
    ]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{"data": []}', ": it has no questions: nothing can be measured"),
        ("[]", ": the file has no list 'data'"),
        ('{"data":\n[,]}', ":2: not valid JSON: Expecting value"),
        ("\xff", " cannot be read: 'utf-8' codec can't decode byte 0xff in position 0"),
    ],
)
def test_file_that_is_not_squad_is_reported_in_one_line(
    content: str, told: str, tmp_path: Path
) -> None:
    path = write(tmp_path, {"context": "a", "qas": [question("1")]})
    path.write_bytes(content.encode("latin-1"))
    assert refusal(SquadDataset, setup(tmp_path)).startswith(f"{path}{told}")


def test_context_without_words_is_reported(tmp_path: Path) -> None:
    path = write(tmp_path, {"context": " \n", "qas": [question("1")]})
    assert refusals(SquadDataset, setup(tmp_path)) == [f"{path}: context 1 has no words"]


def test_a_vocabulary_is_beside_the_manifest_or_in_the_data(tmp_path: Path) -> None:
    write(tmp_path, {"context": "a", "qas": [question("1")]})
    (tmp_path / "m").mkdir()
    assert refusals(
        SquadDataset, setup(tmp_path, steps=steps(vocab="v.txt"), model_dir=tmp_path / "m")
    ) == [
        f"vocabulary v.txt does not exist: put the model's vocabulary in {tmp_path}/m or {tmp_path}"
    ]
    assert refusals(SquadDataset, setup(tmp_path, steps=steps(vocab="../v.txt"))) == [
        "tokenise.vocab ../v.txt is outside the manifest's folder"
    ]
    (tmp_path / "m/vocab.txt").write_text("the\n[UNK]\n")
    assert refusals(SquadDataset, setup(tmp_path, model_dir=tmp_path / "m")) == [
        f"{tmp_path}/m/vocab.txt lacks [CLS], [SEP]: it is not a BERT vocabulary"
    ]


def test_contradictory_steps_are_reported(tmp_path: Path) -> None:
    write(tmp_path, {"context": "a", "qas": [question("1")]})
    mixed = {**steps(), "mask": steps(stride=9, max_length=32)["mask"], "types": ()}
    assert refusals(SquadDataset, setup(tmp_path, steps=mixed)) == [
        "input 'mask' is [batch, 24], but its tokenise.max_length is 32",
        "dataset 'squad' needs a `tokenise` step for input 'types': declare it in the model's manifest, which `init --model FILE` writes",
        "input 'mask': its tokenise step differs from 'ids''s in max_length",
        "input 'mask': its tokenise step differs from 'ids''s in stride",
    ]
    assert refusal(SquadDataset, setup(tmp_path, steps=steps(max_query_length=21))) == (
        "tokenise.max_length 24 leaves no room for a context in addition to max_query_length 21 and three "
        "special pieces"
    )


def test_the_digest_is_of_the_questions_and_the_vocabulary(tmp_path: Path) -> None:
    write(tmp_path, {"context": "a b", "qas": [question("1")]})
    first = SquadDataset(setup(tmp_path)).describe()
    assert (first["count"], first["questions"]) == (1, 1)
    (tmp_path / "vocab.txt").write_text("\n".join((*VOCAB, "more")))
    assert SquadDataset(setup(tmp_path)).describe()["digest"] != first["digest"]


def bert(folder: Path) -> Path:
    """Writes the manifest of a model that returns logits of the right shape."""
    names = ("input_ids", "input_mask", "segment_ids")
    shape = ["batch", SMALL["max_length"]]
    nodes = [helper.make_node("Cast", [n], [f"{n}_f"], to=FLOAT) for n in names]
    nodes.append(helper.make_node("Sum", [f"{n}_f" for n in names], ["start"]))
    ends = [value(n, shape, INT64) for n in names]
    odd_files.write(folder / "bert.onnx", nodes, ends, [value("start", shape)])
    inputs = [
        {
            "name": name, "dtype": "int64", "shape": [*shape],
            "preprocess": {"tokenise": {"vocab": "vocab.txt", "gives": gives, **SMALL}},
        }
        for name, gives in zip(names, GIVES, strict=True)
    ]  # fmt: skip
    manifest = {
        "name": "tiny-bert", "version": "1", "description": "x", "licence": "Apache-2.0",
        "task": "question-answering", "inputs": inputs, "dataset": "squad",
        "files": {"onnx": {"path": "bert.onnx", "sha256": sha256_of(folder / "bert.onnx")}},
        "outputs": [{"name": "start"}],
    }  # fmt: skip
    (folder / "bert.yaml").write_text(yaml.safe_dump(manifest))
    return folder / "bert.yaml"


@pytest.mark.slow
def test_a_run_on_squad_is_measured(tmp_path: Path) -> None:
    generated(tmp_path)
    done = run(
        "--scenario", "offline", "--queries", "500", "--mode", "performance",
        "--model", str(bert(tmp_path)), "--data-dir", str(tmp_path), "--out", f"{tmp_path}/r",
    )  # fmt: skip
    assert done.status == 0, done.said + done.printed
    about = json.loads((tmp_path / "r/environment.json").read_text())["dataset"]
    assert about["count"] > 100
    assert about["steps"]["input_ids"][0]["tokenise"]["gives"] == "ids"
