"""A prefix for all prompts of a run: equal for equal seeds, valid in JSON, and with known token ids."""

import json
from typing import Any

import pytest

from harness.backends.parts.openai.fresh import Fresh


def put(fresh: Fresh, prompt: dict[str, Any]) -> Any:
    text = json.dumps(prompt, separators=(",", ":"), ensure_ascii=False)
    return json.loads(fresh.put(text.encode()))


def test_texts_begin_with_the_seed() -> None:
    assert (
        put(Fresh("a1"), {"max_tokens": 3, "prompt": 'say "prompt":'})["prompt"]
        == '[a1] say "prompt":'
    )
    assert put(Fresh('"'), {"prompt": "x"})["prompt"] == '["] x'


def test_the_first_text_of_a_chat_begins_with_the_seed() -> None:
    chat = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "Hi"}]
    assert put(Fresh("s"), {"messages": chat})["messages"][0]["content"] == "[s] Be brief"
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}, chat[1]]
    assert put(Fresh("s"), {"messages": parts})["messages"][0]["content"][0]["text"] == "[s] Hi"


def test_a_chat_without_a_text_is_refused() -> None:
    with pytest.raises(ValueError, match="no text to which a new beginning could be added"):
        put(Fresh("s"), {"messages": [{"role": "user", "content": []}]})


def test_token_ids_begin_with_the_same_known_ids_in_all_prompts() -> None:
    fresh, again, other = Fresh("s"), Fresh("s"), Fresh("t")
    first, second = (put(fresh, {"prompt": ids})["prompt"] for ids in ([*range(50, 90)], [7, 8]))
    assert first[8:] == [*range(50, 90)]
    assert second[8:] == [7, 8]
    assert first[:8] == second[:8]
    assert {*first[:8]} <= {*range(50, 90)}
    assert put(again, {"prompt": [*range(50, 90)]})["prompt"] == first
    assert put(other, {"prompt": [*range(50, 90)]})["prompt"] != first


def test_every_run_draws_its_own_beginning() -> None:
    assert Fresh("on").seed != Fresh("on").seed
