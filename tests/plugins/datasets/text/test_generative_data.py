"""Captions, products and function calls: the files that MLPerf downloads become requests; errors name the files."""

import io
import json
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from harness.datasets.mlperf.captions import CaptionsDataset
from harness.datasets.mlperf.function_calls import FunctionCallsDataset
from harness.datasets.text.sessions import SessionsDataset
from harness.types import Dataset, DatasetSetup, TensorSpec
from tests.builders.refusals import refusals
from tests.builders.submit import generated_data as made

REQUEST = TensorSpec("request", "string", ("batch",))


def setup(path: Path, **options: str) -> DatasetSetup:
    return DatasetSetup(inputs=(REQUEST,), data_dir=path, options=options)


def requests(dataset: Dataset) -> list[Any]:
    indices = list(range(len(dataset)))
    dataset.load(indices[::-1])
    return [json.loads(dataset.batch([i]).inputs["request"][0]) for i in indices]


def test_captions_of_coco_are_prompts_and_labels(tmp_path: Path) -> None:
    made.coco(tmp_path / "coco2014", 12)
    dataset = CaptionsDataset(setup(tmp_path / "coco2014"))
    assert len(dataset) == 12
    assert dataset.label(1) == 'A "quick" picture 1.'
    assert requests(dataset)[1] == {"prompt": 'A "quick" picture 1.'}
    same = CaptionsDataset(setup(tmp_path / "coco2014/captions/captions.tsv"))
    assert same.describe()["digest"] == dataset.describe()["digest"]


def test_prompts_of_videos_are_lines_of_a_text(tmp_path: Path) -> None:
    (tmp_path / "vbench_prompts.txt").write_text(" a cat \n\na dog\n")
    dataset = CaptionsDataset(setup(tmp_path))
    assert [dataset.label(i) for i in range(len(dataset))] == ["a cat", "a dog"]
    assert requests(dataset) == [{"prompt": "a cat"}, {"prompt": "a dog"}]


def test_further_keys_of_a_prompt_are_fields_of_its_request(tmp_path: Path) -> None:
    path = tmp_path / "wan22_prompts.jsonl"
    path.write_text(json.dumps({"prompt": "a cat", "negative_prompt": "blurry"}) + "\n")
    (request,) = requests(CaptionsDataset(setup(path)))
    assert request == {
        "fields": ["negative_prompt", "prompt"],
        "negative_prompt": "blurry",
        "prompt": "a cat",
    }
    assert CaptionsDataset(setup(path)).label(0) == "a cat"


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.tsv", "id\ttext\n1\tx\n", "has no column 'caption'"),
        (
            "a.tsv",
            "id\tcaption\turl\n1\tx\tu\n2\ty",
            ":3 has too few columns: download the file again",
        ),
        ("a.tsv", "caption\n\t\n", "a.tsv:2: prompt must be a non-empty string"),
        ("a.txt", "\n \n", "has no captions: nothing can be measured"),
        ("a.jsonl", '{"messages": [{"role": "user", "content": "x"}]}\n', "a.jsonl:1: it needs"),
        ("a.jsonl", "[]\n", "a.jsonl:1: it is not a JSON object"),
        ("a.jsonl", "x\n", "a.jsonl:1: it is not valid JSON, at character 1"),
        ("a.txt", b"\xff\n", "cannot be read"),
    ],
)
def test_captions_that_cannot_be_used_are_named(
    name: str, content: str | bytes, told: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (found,) = refusals(CaptionsDataset, setup(path))
    assert told in found


class TestProducts:
    @pytest.fixture(autouse=True)
    def needs_pyarrow(self) -> None:
        pytest.importorskip("pyarrow")

    def opened(self, path: Path) -> Any:
        from harness.datasets.mlperf.product_catalogue import ProductCatalogueDataset

        return ProductCatalogueDataset(setup(path))

    def test_a_product_becomes_a_chat_with_its_picture(self, tmp_path: Path) -> None:
        made.products(tmp_path, 31)
        dataset = self.opened(tmp_path)
        assert len(dataset) == 31
        assert dataset.label(30) == {"text": made.CATEGORIES[2], "brand": "brand 2"}
        chats = requests(dataset)
        names = chats[4].pop("fields")
        assert names[-1] == "messages"
        assert {name: chats[4][name] for name in names[:-1]} == {
            "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.0
        }  # fmt: skip
        for number, chat in enumerate(chats):
            text, image = chat["messages"][1]["content"]
            assert f"```text\nProduct {number}\n```" in text["text"]
            assert json.dumps(list(made.CATEGORIES)) in text["text"]
            head, _, data = image["image_url"]["url"].partition(",")
            kind = ("JPEG", "PNG")[number % 2]
            assert head == f"data:image/{kind};base64"
            with Image.open(io.BytesIO(b64decode(data))) as picture:
                assert (picture.format, picture.size) == (kind, (8, 8))

    def test_the_table_that_the_client_caches_gives_equal_chats(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        made.products(tmp_path / "hub", 6)
        chats = requests(self.opened(tmp_path / "hub"))
        rows: list[Any] = []
        for path in ("train", "test"):
            table = pq.read_table(tmp_path / f"hub/data/{path}-00000-of-00001.parquet").to_pylist()
            for row in table:
                chat = chats[len(rows)]["messages"][1]["content"][1]["image_url"]["url"]
                head, _, data = chat.partition(",")
                row["product_image_base64"] = data
                row["product_image_format"] = head[len("data:image/") : -len(";base64")]
                row["potential_product_categories"] = json.dumps(
                    row["potential_product_categories"]
                )
                del row["product_image"]
                rows.append(row)
        pq.write_table(pa.Table.from_pylist(rows), tmp_path / "cached.parquet")
        assert requests(self.opened(tmp_path / "cached.parquet")) == chats

    def test_repeated_samples_of_one_load_are_all_there(self, tmp_path: Path) -> None:
        made.products(tmp_path, 6)
        dataset = self.opened(tmp_path)
        dataset.load([3, 1, 3])
        assert b"Product 3" in dataset.batch([3]).inputs["request"][0]

    def test_other_tables_are_refused_with_the_missing_column(self, tmp_path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        from harness.datasets.mlperf.product_catalogue import ProductCatalogueDataset

        path = tmp_path / "a.parquet"
        pq.write_table(pa.table({"product_title": ["x"]}), path)
        (told,) = refusals(ProductCatalogueDataset, setup(path))
        assert told.endswith("has no column 'product_description': it is not the product catalogue")
        path.write_bytes(b"no table")
        (told,) = refusals(ProductCatalogueDataset, setup(path))
        assert "cannot be read" in told
        (told,) = refusals(ProductCatalogueDataset, setup(tmp_path / "none"))
        assert "does not exist" in told


SIZES = {"simple_python": 30, "parallel": 10, "live_simple": 100, "irrelevance": 26}


def test_the_first_samples_of_each_subset_are_taken_in_the_order_of_names(tmp_path: Path) -> None:
    made.functions(tmp_path, SIZES)
    dataset = FunctionCallsDataset(setup(tmp_path))
    assert dataset.describe()["subsets"] == {
        "irrelevance": 2, "live_simple": 10, "parallel": 10, "simple_python": 18
    }  # fmt: skip
    everything = FunctionCallsDataset(setup(tmp_path, samples="all"))
    assert len(everything) == sum(SIZES.values())
    first = requests(dataset)[2]
    assert first["messages"] == [{"role": "user", "content": "Call 0 of live_simple"}]
    assert (first["temperature"], first["seed"], first["tool_choice"]) == (0, 42, "auto")
    (tool,) = first["tools"]
    assert tool == {
        "type": "function",
        "function": {
            "name": "math_double",
            "description": "Doubles.",
            "parameters": {
                "type": "object",
                "properties": {"number": {"type": "integer", "description": "n"}},
                "required": ["number"],
            },
        },
    }
    label: Any = dataset.label(2)
    assert label["right"] == [{"math.double": {"number": [0]}}]
    assert label["functions"][0]["parameters"]["type"] == "dict"
    assert dataset.label(0)["right"] == []


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("x\n", "is not valid JSON"),
        ("[]\n", "is not a JSON object"),
        ('{"question": [[{}]], "function": []}\n', "is not a BFCL sample"),
        ('{"question": [[]], "function": [{"name": "f"}]}\n', "is not a BFCL sample"),
    ],
)
def test_line_without_a_sample_is_named(content: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "BFCL_v4_simple_python.json").write_text(content)
    (found,) = refusals(FunctionCallsDataset, setup(tmp_path))
    assert f"BFCL_v4_simple_python.json:1 {told}" in found


def test_folder_without_samples_and_other_choices_are_refused(tmp_path: Path) -> None:
    (found,) = refusals(FunctionCallsDataset, setup(tmp_path))
    assert found == f"{tmp_path} has no BFCL_v4_*.json: name the folder with these files"
    (found,) = refusals(FunctionCallsDataset, setup(tmp_path, samples="some"))
    assert found == "--dataset-option samples=some is not one of mlperf, all"


AGENT = [
    {"conversation_id": "a", "turn": 1, "role": "user", "content": "Fix", "system": "You", "tools": [{"type": "function"}]},
    {"conversation_id": "a", "turn": 2, "role": "assistant", "reasoning_content": "hm", "tool_calls": [{"id": "1"}, {"id": "2"}]},
    {"conversation_id": "b", "turn": 1, "role": "user", "content": "Hi"},
    {
        "conversation_id": "a",
        "turn": 3,
        "role": "tool",
        "tool_results": [{"tool_call_id": "1", "content": "x"}, {"tool_call_id": "2", "content": "y"}],
        "delay_seconds": 0.5,
    },
]  # fmt: skip


def test_recorded_sessions_of_mlperfs_agents_are_turns(tmp_path: Path) -> None:
    path = tmp_path / "agentic_coding.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in AGENT))
    dataset = SessionsDataset(setup(path))
    assert dataset.sessions().session.tolist() == [0, 0, 1]
    assert dataset.sessions().delay_ns.tolist() == [0, 500_000_000, 0]
    first, second, other = requests(dataset)
    assert (first["temperature"], first["seed"], first["tools"]) == (0, 42, [{"type": "function"}])
    assert second["messages"] == [
        {"role": "system", "content": "You"},
        {"role": "user", "content": "Fix"},
        {
            "content": None,
            "role": "assistant",
            "tool_calls": [{"id": "1"}, {"id": "2"}],
            "reasoning_content": "hm",
        },
        {"role": "tool", "tool_call_id": "1", "content": "x"},
        {"role": "tool", "tool_call_id": "2", "content": "y"},
    ]
    assert other["messages"] == [{"role": "user", "content": "Hi"}]


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"role": "tool"}, "a tool line needs `tool_results`"),
        ({"role": "tool", "tool_results": [{}]}, "a tool result needs `tool_call_id`"),
        ({"role": "user", "content": "x", "turn": 1}, "turn 1 is out of order"),
        ({"role": "robot"}, "the role is 'robot'"),
    ],
)
def test_line_of_an_agent_that_cannot_be_used_is_named(
    row: dict[str, Any], told: str, tmp_path: Path
) -> None:
    path = tmp_path / "agentic_coding.jsonl"
    lines = [AGENT[0], {"conversation_id": "a", "turn": 2, **row}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (found,) = refusals(SessionsDataset, setup(path))
    assert f"{path}:2: {told}" in found
