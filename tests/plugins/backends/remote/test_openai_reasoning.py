"""The start of the answer in streams whose model first writes its reasoning."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.backends.parts.openai.reasoning import AnswerStart
from harness.backends.parts.openai.replies import Reading
from harness.backends.parts.openai.streams import Streamed


def started(*contents: str) -> list[int]:
    """Returns, after each text, how many times the answer has started; the value is 0 before the first start."""
    start, found = AnswerStart(), []
    for content in contents:
        start.take("", content)
        found.append(start.times if start.is_answer else 0)
    return found


@pytest.mark.parametrize(
    ("contents", "expected"),
    [
        (["Hi", " you"], [1, 1]),
        ([" ", "\n", "Hi"], [0, 0, 1]),
        (["<think>", "so", "</think>", "\n\n", "Hi"], [0, 0, 0, 0, 1]),
        (["<thi", "nk>so</th", "ink>Hi"], [0, 0, 1]),
        (["<thinking>so</thinking>Hi"], [1]),
        (["[THINK]so", "[/THINK] Hi"], [0, 1]),
        (["<thin", " air"], [0, 1]),
        # The prompt already opened the reasoning, so the answer only closes it.
        (["so", " far</think>", "Hi"], [1, 0, 2]),
        (["so</thi", "nk>\nHi"], [1, 2]),
        (["<think>a</think>b", "c</think>d"], [1, 1]),
        (["<think>never", " ends"], [0, 0]),
    ],
)
def test_the_answer_begins_after_the_marks(contents: Sequence[str], expected: list[int]) -> None:
    assert started(*contents) == expected


@given(st.lists(st.integers(1, 6), min_size=1), st.sampled_from(["<think>", "[THINK]", ""]))
def test_pieces_of_any_size_give_the_same_beginning(sizes: list[int], opening: str) -> None:
    closing = opening.replace("<", "</").replace("[", "[/")
    text = f"{opening}{'so ' * 9 if opening else ''}{closing} Hi"
    pieces: list[str] = []
    at = 0
    while at < len(text):
        size = sizes[len(pieces) % len(sizes)]
        pieces.append(text[at : at + size])
        at += size
    found = started(*pieces)
    first = next(i for i, times in enumerate(found) if times)
    assert "".join(pieces[: first + 1]).rstrip().endswith(("H", "Hi"))
    assert found[-1] == 1


def chunk(**delta: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [{"delta": delta}]}).encode() + b"\n\n"


@pytest.mark.parametrize("key", ["reasoning", "reasoning_content"])
def test_reasoning_under_its_key_is_not_the_answer(key: str) -> None:
    reader = Streamed(Reading())
    assert reader.feed(chunk(role="assistant", content="")) == 0
    assert reader.feed(chunk(**{key: "so"})) == 1
    assert reader.answer_starts == 0
    assert reader.feed(chunk(content="Hi")) == 2
    assert reader.answer_starts == 1


def test_calls_of_tools_are_the_answer() -> None:
    reader = Streamed(Reading())
    reader.feed(chunk(reasoning="so"))
    reader.feed(chunk(tool_calls=[{"function": {"name": "add", "arguments": ""}}]))
    assert reader.answer_starts == 1
