"""Conversations: each turn is a sample with all previous messages; unusable turns are skipped and counted."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.datasets.text.conversations import ConversationsDataset
from harness.errors import ConfigError
from harness.types import DatasetSetup, TensorSpec

REQUEST = TensorSpec("request", "string", ("batch",))


def sharegpt(*messages: str) -> dict[str, Any]:
    """Returns messages in the notation `human: text`."""
    pairs = [message.split(": ", 1) for message in messages]
    return {"id": "x", "conversations": [{"from": who, "value": text} for who, text in pairs]}


def opened(path: Path, **options: str) -> ConversationsDataset:
    return ConversationsDataset(DatasetSetup(inputs=(REQUEST,), data_dir=path, options=options))


def requests(dataset: ConversationsDataset) -> list[Any]:
    dataset.load(range(len(dataset)))
    (rows,) = dataset.batch(range(len(dataset))).inputs.values()
    return [json.loads(row) for row in rows]


def test_each_turn_of_a_conversation_is_a_sample(tmp_path: Path) -> None:
    path = tmp_path / "sharegpt.json"
    path.write_text(
        json.dumps(
            [
                sharegpt("human: a", "gpt: b", "human: c", "gpt: d"),
                sharegpt("gpt: begins wrongly", "human: x"),
                sharegpt("system: s", "human: é"),
                sharegpt("human: e", "gpt: f", "gpt: again", "human: never asked"),
                {"id": "empty", "conversations": []},
            ]
        )
    )
    dataset = opened(path, max_tokens="9")
    said = [
        [(m["role"], m["content"]) for m in request["messages"]] for request in requests(dataset)
    ]
    user, model = "user", "assistant"
    assert said == [
        [(user, "a")],
        [(user, "a"), (model, "b"), (user, "c")],
        [("system", "s"), (user, "é")],
        [(user, "e")],
    ]
    assert all(request["max_tokens"] == 9 for request in requests(dataset))
    assert dataset.turns().tolist() == [0, 1, 0, 0]
    assert [dataset.label(i) for i in range(4)] == ["b", "d", None, "f"]
    about = dataset.describe()
    assert (about["conversations"], about["left_out"]) == (3, 2)
    assert about["digest"] != opened(path).describe()["digest"]
    sizes = [
        len(json.dumps(r, ensure_ascii=False, separators=(",", ":"))) for r in requests(dataset)
    ]
    assert sorted(range(4), key=sizes.__getitem__) == sorted(
        range(4), key=dataset.lengths(range(4)).__getitem__
    )


def test_each_line_of_messages_is_a_conversation(tmp_path: Path) -> None:
    line = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
    (tmp_path / "chats.jsonl").write_text(f"{json.dumps(line)}\n\n{json.dumps(line)}\n")
    dataset = opened(tmp_path)
    assert requests(dataset) == [{"messages": line["messages"][:1]}] * 2


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.json", "{}", "is not a list of conversations"),
        ("a.json", "[", "is not valid JSON, at character 2"),
        ("a.jsonl", '{"messages": []}\n{', "a.jsonl:2 is not valid JSON"),
        ("a.json", '[{"messages": [{"role": "assistant", "content": "x"}]}, 7]', "no conversation"),
        ("a.txt", "", "must contain exactly one .json or .jsonl file, but contains none"),
    ],
)
def test_file_without_conversations_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(ConfigError, match=message):
        opened(tmp_path)
