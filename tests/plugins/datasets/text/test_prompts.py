"""Prompts: every line becomes the JSON that is sent to a server; errors name the unusable lines."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.datasets.text import prompts
from harness.datasets.text.prompts import PromptsDataset
from harness.errors import ConfigError
from harness.types import DatasetSetup, TensorSpec
from tests.builders.refusals import refusals

REQUEST = TensorSpec("request", "string", ("batch",))


def setup(path: Path, *specs: TensorSpec) -> DatasetSetup:
    return DatasetSetup(inputs=specs or (REQUEST,), data_dir=path)


def jsonl(folder: Path, *rows: Any) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("".join(f"{r if isinstance(r, str) else json.dumps(r)}\n" for r in rows))
    return path


def refusal(path: Path, *specs: TensorSpec) -> list[str]:
    return refusals(PromptsDataset, setup(path, *specs))


def requests(dataset: PromptsDataset, indices: list[int]) -> list[bytes]:
    dataset.load(range(len(dataset)))
    batch = dataset.batch(indices)
    assert batch.size == len(indices)
    (rows,) = batch.inputs.values()
    return list(rows)


@pytest.mark.parametrize(
    ("rows", "sent", "sizes"),
    [
        (
            [{"input_ids": [1, 2, 300], "max_tokens": 5}, {"input_ids": [7], "id": "x"}],
            [b'{"max_tokens":5,"prompt":[1,2,300]}', b'{"prompt":[7]}'],
            [3, 1],
        ),
        ([{"prompt": 'né "q"'}], ['{"prompt":"né \\"q\\""}'.encode()], [7]),
        (
            [{"messages": [{"role": "user", "content": "Hi"}]}],
            [b'{"messages":[{"role":"user","content":"Hi"}]}'],
            [45],
        ),
    ],
)
def test_a_line_becomes_its_part_of_a_request(
    tmp_path: Path, rows: list[Any], sent: list[bytes], sizes: list[int]
) -> None:
    dataset = PromptsDataset(setup(jsonl(tmp_path, *rows)))
    assert requests(dataset, list(range(len(rows)))) == sent
    assert dataset.lengths(range(len(rows))).tolist() == sizes


def test_references_are_the_labels(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a", "reference": "b"}, "", {"prompt": "c"})
    dataset = PromptsDataset(setup(path))
    assert [dataset.label(i) for i in range(2)] == ["b", None]


def test_samples_keep_the_requested_order(tmp_path: Path) -> None:
    dataset = PromptsDataset(setup(jsonl(tmp_path, *({"prompt": str(i)} for i in range(20)))))
    wanted = [7, 3, 3, 19, 0, 1, 2, 3, 4, 5, 6]
    assert requests(dataset, wanted) == [b'{"prompt":"%d"}' % i for i in wanted]


def test_a_parquet_file_holds_the_same_prompts(tmp_path: Path) -> None:
    rows = [
        {"input_ids": [1, 2], "max_tokens": 4, "reference": "a", "other": 1.5},
        {"input_ids": [3], "max_tokens": None, "reference": None, "other": 2.5},
    ]
    (tmp_path / "data").mkdir()
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "data" / "p.parquet")
    dataset = PromptsDataset(setup(tmp_path / "data"))
    assert requests(dataset, [0, 1]) == [b'{"max_tokens":4,"prompt":[1,2]}', b'{"prompt":[3]}']
    assert [dataset.label(i) for i in range(2)] == ["a", None]


def test_file_that_is_not_parquet_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    path.write_bytes(b"PAR1 is not all")
    (problem,) = refusal(path)
    assert problem.startswith(f"{path} cannot be read: ")


def test_the_digest_changes_with_the_content(tmp_path: Path) -> None:
    first = PromptsDataset(setup(jsonl(tmp_path, {"prompt": "a"}))).describe()
    other = PromptsDataset(setup(jsonl(tmp_path, {"prompt": "b"}))).describe()
    assert first["digest"] != other["digest"]
    assert (first["prompts"], first["unit"]) == ("prompt", "bytes")
    assert first["lengths"] == {"min": 1, "median": 1.0, "max": 1}


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("{", "it is not valid JSON, at character 2"),
        ('{"prompt": "a", "prompt": "b"}', "it is not valid JSON: the key 'prompt' appears twice"),
        ("[1]", "it is not a JSON object"),
        ({}, "it needs one of input_ids, prompt, messages, but has none"),
        ({"prompt": "a", "input_ids": [1]}, "it needs one of input_ids, prompt, messages, but has input_ids and prompt"),
        ({"prompt": ""}, "prompt must be a non-empty string"),
        ({"prompt": 7}, "prompt must be a non-empty string"),
        ({"input_ids": []}, "input_ids must be a list of at least one token id"),
        ({"input_ids": [1, True]}, "input_ids has True, which is not a token id"),
        ({"input_ids": [-1]}, "input_ids has -1, which is not a token id"),
        ({"messages": []}, "messages must be a list of at least one message"),
        ({"messages": [{"content": "a"}]}, "messages has a message without a role"),
        ({"messages": [{"role": "user"}]}, "the 'user' message has no content"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens is 0, but must be a whole number of at least 1"),
        ({"prompt": "a", "reference": 1}, "reference is 1, but must be a string or a list of numbers"),
        ('{"prompt": "\\ud800"}', "it has a lone surrogate (half a character), which UTF-8 cannot encode"),
        ('{"messages": [{"role": "user", "content": "a", "x": NaN}]}', "it is not valid JSON: NaN is not a finite number"),
    ],
)  # fmt: skip
def test_unusable_line_is_reported_with_its_number(tmp_path: Path, row: Any, problem: str) -> None:
    path = jsonl(tmp_path, {"prompt": "right"}, row)
    assert refusal(path) == [f"{path}:2: {problem}"]


def test_all_lines_have_the_same_kind_of_prompt(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a"}, {"input_ids": [1]})
    assert refusal(path) == [
        f"{path}:2 has 'input_ids', but {path}:1 has 'prompt': use only one of them"
    ]


def test_a_file_of_wrong_lines_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = jsonl(tmp_path, *["?"] * 1000)
    assert len(refusal(path)) == 20


def test_files_without_prompts_and_too_long_lines_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = jsonl(tmp_path, "")
    assert refusal(path) == [f"{path} has no prompts: nothing can be measured"]
    monkeypatch.setattr(prompts, "MOST_LINE_BYTES", 30)
    path = jsonl(tmp_path, {"prompt": "a" * 50})
    assert refusal(path) == [f"{path}:1: the line is longer than 30 bytes"]


def test_the_folder_must_hold_one_file(tmp_path: Path) -> None:
    assert refusal(tmp_path) == [
        f"{tmp_path} must contain exactly one .jsonl or .parquet file, but contains none: name one"
    ]


def test_the_model_must_take_one_text(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"prompt": "a"})
    for specs in ((TensorSpec("x", "int32", ("batch",)),), (REQUEST, REQUEST._replace(name="b"))):
        (problem,) = refusal(path, *specs)
        assert problem == (
            "dataset 'prompts' needs a model with one input of dtype string and shape [batch]: see "
            "docs/datasets.md for its manifest"
        )


@given(st.binary(max_size=200))
def test_any_bytes_are_prompts_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("any") / "p.jsonl"
    path.write_bytes(content)
    try:
        dataset = PromptsDataset(setup(path))
    except ConfigError:
        return
    for request in requests(dataset, list(range(len(dataset)))):
        assert isinstance(json.loads(request), dict)


@pytest.mark.parametrize(
    ("row", "sent"),
    [
        (
            {"prompt": "Hi", "temperature": 0.5, "model": "lora-a", "id": 3},
            {
                "fields": ["model", "temperature", "prompt"],
                "model": "lora-a",
                "temperature": 0.5,
                "prompt": "Hi",
            },
        ),
        (
            {"prompt": "Hi", "max_tokens": 4, "body": {"min_p": 0.1}},
            {
                "fields": ["min_p", "max_tokens", "prompt"],
                "min_p": 0.1,
                "max_tokens": 4,
                "prompt": "Hi",
            },
        ),
        (
            {"custom_id": "1", "url": "/v1/completions", "body": {"prompt": "Hi", "model": "m"}},
            {"fields": ["model", "prompt"], "model": "m", "prompt": "Hi"},
        ),
        (
            {"prompt": "Hi", "top_k": 5, "ignore_eos": True, "max_completion_tokens": 3},
            {
                "fields": ["ignore_eos", "top_k", "max_tokens", "prompt"],
                "ignore_eos": True,
                "top_k": 5,
                "max_tokens": 3,
                "prompt": "Hi",
            },
        ),
        ({"prompt": "Hi", "temperature": 0.5, "body": {"temperature": 0.9}}, 0.5),
    ],
)
def test_fields_of_a_line_precede_its_prompt(tmp_path: Path, row: Any, sent: Any) -> None:
    (request,) = requests(PromptsDataset(setup(jsonl(tmp_path, row))), [0])
    found = json.loads(request)
    if isinstance(sent, float):
        assert found["temperature"] == sent
    else:
        assert found == sent
        assert [*found] == [*sent]


def test_models_and_drawn_tokens_are_described(tmp_path: Path) -> None:
    rows = [
        {"prompt": "a", "model": "x", "temperature": 1, "seed": 3},
        {"prompt": "b", "model": "x"},
        {"prompt": "c"},
    ]
    about = PromptsDataset(setup(jsonl(tmp_path, *rows))).describe()
    assert about["models"] == {"": 1, "x": 2}
    assert "draws_tokens" not in about
    drawn = PromptsDataset(setup(jsonl(tmp_path, {"prompt": "a", "temperature": 1}))).describe()
    assert drawn["draws_tokens"] is True
    assert "models" not in drawn


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"prompt": "a", "body": 3}, "body is 3, but must be an object"),
        ({"prompt": "a", "body": {"stream": True}}, "body has the field 'stream'"),
        ({"prompt": "a", "body": {"a b": 1}}, "body has the field 'a b'"),
        ({"prompt": "a", "model": 7}, "model is 7, but must be a name"),
        ({"prompt": "a", "model": 'x"y'}, "but must be a name"),
        ({"prompt": "a", "body": {"n": 2}}, "n must be 1"),
        ({"prompt": "a", "n": 2}, "n must be 1"),
        (
            {"prompt": "a", "max_toknes": 3},
            "the key 'max_toknes' is unknown: did you mean 'max_tokens'?",
        ),
    ],
)
def test_fields_that_cannot_be_sent_are_refused(tmp_path: Path, row: Any, problem: str) -> None:
    (found,) = refusal(jsonl(tmp_path, row))
    assert problem in found


def test_keys_that_are_not_sent_are_noted(tmp_path: Path) -> None:
    """Bug: sampling fields were silently dropped, and the run was VALID."""
    rows = [{"id": 1, "prompt": "a", "category": "x"}, {"prompt": "b", "category": "y", "num": 2}]
    about = PromptsDataset(setup(jsonl(tmp_path, *rows))).describe()
    assert about["notes"] == [
        "not sent: category, num; put further fields of a request into `body`"
    ]
    pq.write_table(pa.table({"prompt": ["a"], "category": ["x"]}), tmp_path / "p.parquet")
    about = PromptsDataset(setup(tmp_path / "p.parquet")).describe()
    assert about["notes"] == ["not sent: category; put further fields of a request into `body`"]
    about = PromptsDataset(setup(jsonl(tmp_path, {"prompt": "a", "id": 1}))).describe()
    assert "notes" not in about


def test_columns_of_a_table_are_fields_of_the_request(tmp_path: Path) -> None:
    table = pa.table({"prompt": ["a", "b"], "model": ["x", None], "id": [1, 2]})
    pq.write_table(table, tmp_path / "p.parquet")
    sent = requests(PromptsDataset(setup(tmp_path / "p.parquet")), [0, 1])
    assert sent == [b'{"fields":["model","prompt"],"model":"x","prompt":"a"}', b'{"prompt":"b"}']
