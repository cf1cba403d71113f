"""The probe after a run sends new prompts, prompts from the run, and the new prompts again, each for one token."""

import json
from collections.abc import Sequence
from random import Random
from typing import Any, cast

import numpy as np
import pytest

from harness.core.formats.prompt_fields import framed
from harness.remote import Reply
from harness.run.measured.client import prompt_probe
from harness.run.measured.client.prompt_probe import probe
from harness.types import Batch


class Prompts:
    """A dataset that serves the given prompts."""

    def __init__(self, prompts: Sequence[dict[str, Any]]) -> None:
        self.samples = [json.dumps(prompt, separators=(",", ":")).encode() for prompt in prompts]

    def batch(self, indices: Sequence[int]) -> Batch:
        rows = np.empty(len(indices), object)
        rows[:] = [self.samples[i] for i in indices]
        return Batch(len(indices), {"request": rows})


class Server:
    """A backend that records what it receives, and refuses prompts for which `refuses` is true."""

    def __init__(self, refuses: Any = lambda _prompt: False) -> None:
        self.received: list[dict[str, Any]] = []
        self._refuses = refuses

    def reply(self, batch: Batch) -> Reply:
        (rows,) = batch.inputs.values()
        content = json.loads(rows[0])
        self.received.append(content)
        refused = self._refuses(content.get("prompt"))
        return Reply(400 if refused else 200, b"", memoryview(b"no such prompt"))


def probed(prompts: Sequence[dict[str, Any]], server: Server, most_s: float = 5.0) -> Any:
    data = cast("Any", Prompts(prompts))
    return probe(cast("Any", server), data, range(len(prompts)), most_s)


IDS = [[i, 100, 101, 102, 103, 104 + i] for i in range(8)]


def test_each_round_sends_a_new_prompt_a_known_one_and_the_new_one_again() -> None:
    server = Server()
    found = probed([framed({"seed": 1}, {"max_tokens": 9, "prompt": ids}) for ids in IDS], server)
    rounds = len(found["seen_ns"])
    assert rounds >= prompt_probe.FEWEST_ROUNDS
    assert found["refused"] == ""
    sent = server.received[1:]
    assert {content["max_tokens"] for content in sent} == {1}
    assert {content["seed"] for content in sent} == {1}
    prompts = [content["prompt"] for content in sent]
    new, known, again = prompts[::3], prompts[1::3], prompts[2::3]
    assert new == again
    assert all(ids in IDS for ids in known)
    assert len({tuple(ids) for ids in new}) == rounds, "no prompt is sent in two rounds"
    for changed, seen in zip(new, known, strict=True):
        assert sorted(changed) == sorted(seen)
        assert changed[0] != seen[0]


def test_words_of_a_text_and_of_the_user_of_a_chat_change_places() -> None:
    server = Server()
    system = {"role": "system", "content": "You are a clerk of few words"}
    chat = [system, {"role": "user", "content": "one two three four five"}]
    probed([{"messages": chat}], server)
    new = server.received[1]["messages"]
    assert new[0] == system
    assert sorted(new[1]["content"].split()) == ["five", "four", "one", "three", "two"]
    assert not new[1]["content"].startswith("one ")
    server = Server()
    probed([{"prompt": "sort 123456="}], server)
    assert server.received[1]["prompt"] != "sort 123456="
    assert server.received[1]["prompt"].startswith("sort ")


def test_a_prompt_without_a_changeable_begin_gives_a_reason() -> None:
    assert "too short" in probed([{"prompt": "Hello"}], Server())["reason"]
    assert "too short" in probed([{"prompt": [5, 5, 5, 5, 5]}], Server())["reason"]


def test_a_slow_server_is_not_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_probe, "LEAST_S", 0.0)
    assert "too long" in probed([{"prompt": IDS[0]}], Server(), most_s=0.0)["reason"]


def test_a_server_that_refuses_new_prompts_only_is_noted() -> None:
    found = probed([{"prompt": ids} for ids in IDS], Server(lambda prompt: prompt not in IDS))
    assert found["refused"] == "400: no such prompt"
    assert "reason" not in found
    found = probed([{"prompt": ids} for ids in IDS], Server(lambda _prompt: True))
    assert "requests one token" in found["reason"]


def test_a_server_that_refuses_a_few_new_prompts_is_not_suspected() -> None:
    """Bug: one refusal was enough, for example if the changed text had more tokens than the context."""
    refused: list[Any] = []

    def refuses(prompt: Any) -> bool:
        if prompt not in IDS and not refused:
            refused.append(prompt)
        return prompt in refused

    found = probed([{"prompt": ids} for ids in IDS], Server(refuses))
    assert refused
    assert found["refused"] == ""
    assert len(found["seen_ns"]) >= prompt_probe.FEWEST_ROUNDS - 1


@pytest.mark.parametrize("parts", [[1, 2, 3, 4], list(range(100)), [1, 1, 1, 2]])
def test_a_shuffled_begin_has_the_same_parts_and_a_new_first_one(parts: list[int]) -> None:
    found = prompt_probe._begin_shuffled(parts, Random(3))
    assert sorted(found) == sorted(parts)
    assert found[0] != parts[0]
    assert found[prompt_probe.CHANGED_PARTS :] == parts[prompt_probe.CHANGED_PARTS :]
