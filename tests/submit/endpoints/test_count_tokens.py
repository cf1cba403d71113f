"""The harness counts the tokens of answers as MLCommons' client does; the client's code runs in a separate environment."""

import importlib.util
import json
import os
import random
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.errors import PluginUnavailable
from harness.submit.endpoints.environments import environment_variables, python_of
from harness.submit.endpoints.witness.answers import read_answer
from harness.submit.endpoints.witness.tokens import TokenCounter, counter_of
from tests.builders.submit.endpoints_events import write_tokenizer

ENVIRONMENT = "HARNESS_ENDPOINTS_ENVIRONMENT"
"""Environment variable with an environment that contains MLCommons' client."""

NO_ENVIRONMENT = Path(sys.prefix) / "no-such-folder"
COUNT = 300
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}think {{ m.reasoning_content }} {% endif %}"
    "{{ m.content }}{% for c in m.tool_calls or [] %} {{ c.function.name }}"
    "{% for k, v in c.function.arguments.items() %} {{ k }} {{ v }}{% endfor %}{% endfor %}</{{ m.role }}>{% endfor %}"
)
"""A chat template that accepts arguments only as a mapping, as Hermes' template does."""

REFERENCE = """\
import asyncio, json, sys
from inference_endpoint.async_utils.services.metrics_aggregator.token_metrics import BatchTokenizer
from inference_endpoint.async_utils.services.metrics_aggregator.tokenization import MessageInput, TextInput
from inference_endpoint.core.types import TextModelOutput

def counted(parts, text):
    return MessageInput(*parts) if text is None else TextInput(text)

async def main():
    batch, inputs = BatchTokenizer(sys.argv[1], n_workers=1, live_workers=1), []
    for data in json.load(sys.stdin):
        answer = TextModelOutput(**dict(zip(("output", "reasoning", "tool_calls"), data)))
        plain = not (answer.reasoning or answer.tool_calls)
        inputs.append(counted(answer.as_message_parts(), str(answer) if plain else None))
        rest = answer.text_after_first_chunk() if plain else None
        inputs.append(counted(answer.as_message_parts_after_first_chunk(), rest))
    counts = await batch.count_batch_async(inputs, asyncio.get_running_loop())
    print(json.dumps(counts))
    batch.close()

if __name__ == "__main__":
    asyncio.run(main())
"""


def answers() -> list[list[Any]]:
    """Draws contents, reasonings and tool calls, both complete and in chunks; a few have odd arguments."""
    drawn = random.Random(1)

    def text(least: int = 0) -> str:
        return "".join(drawn.choices(string.ascii_lowercase + "  {}é", k=drawn.randint(least, 12)))

    def chunks() -> list[str]:
        return [text(1) for _ in range(drawn.randint(1, 4))]

    def call(index: int) -> list[dict[str, Any]]:
        arguments = drawn.choice((json.dumps({"a": text()}), "{", "[1]", ""))
        half = len(arguments) // 2
        name = {"name": text(1), "arguments": arguments[:half]}
        return [
            {"index": index, "id": text(1), "type": "function", "function": name},
            {"index": index, "function": {"arguments": arguments[half:]}},
        ]

    def calls() -> list[Any]:
        pieces = [piece for index in range(drawn.randint(1, 2)) for piece in call(index)]
        return [[piece] for piece in pieces]

    def one() -> list[Any]:
        content = drawn.choice((text, chunks, str, list))()
        reasoning = drawn.choice((lambda: None, text, chunks, list))()
        return [content, reasoning, drawn.choice((lambda: None, lambda: None, calls, list))()]

    return [one() for _ in range(COUNT)]


@pytest.mark.slow
@pytest.mark.parametrize("template", [TEMPLATE, ""], ids=["template", "no-template"])
def test_tokens_are_counted_as_by_the_client(template: str, tmp_path: Path) -> None:
    given = os.environ.get(ENVIRONMENT)
    if not given:
        pytest.skip(f"set {ENVIRONMENT} to an environment with MLCommons' client")
    folder = write_tokenizer(tmp_path / "tokenizer", template)
    (tmp_path / "reference.py").write_text(REFERENCE)
    done = subprocess.run(
        [str(python_of(Path(given))), str(tmp_path / "reference.py"), str(folder)],
        env=environment_variables(),
        input=json.dumps(answers()),
        capture_output=True,
        text=True,
        check=True,
    )
    theirs = json.loads(done.stdout.splitlines()[-1])
    counter = TokenCounter(folder, Path(given))
    found = [read_answer(["TextModelOutput", *data]) for data in answers()]
    ours = counter.count([part for one in found for part in (one.whole, one.rest)])
    counter.close()
    assert ours == theirs
    assert len(set(ours)) > 10


def test_tokens_are_counted_in_another_process(tmp_path: Path) -> None:
    counter, why = counter_of(str(write_tokenizer(tmp_path / "t")), NO_ENVIRONMENT)
    assert counter is not None, why
    assert counter.count(["ab", "", "c"]) == [2, 0, 1]
    counter.close()


def test_a_tokenizer_with_its_own_code_needs_consent(tmp_path: Path) -> None:
    assert counter_of(str(tmp_path / "none" / "x"), tmp_path) == (
        None,
        f"{tmp_path / 'none'} does not exist",
    )
    counter, why = counter_of(str(tmp_path), NO_ENVIRONMENT)
    assert counter is None
    assert "pass --trust-tokenizer" in why


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is not None, reason="transformers is installed"
)
def test_messages_without_transformers_are_not_counted(tmp_path: Path) -> None:
    counter, why = counter_of(str(write_tokenizer(tmp_path / "t")), NO_ENVIRONMENT)
    assert counter is not None, why
    with pytest.raises(PluginUnavailable, match="cannot be counted: ModuleNotFoundError"):
        counter.count([("", "thought", [])])
    assert counter.count(["ab"]) == [2]
    counter.close()
