"""Reads the prompt of a request as OpenAI's API has it: token ids, a text or a chat."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness.models.generation.vocabulary import Vocabulary
from harness.models.manifest.schema import Generation


class Prompts:
    """The prompts that one model takes."""

    def __init__(self, about: Generation) -> None:
        self._most = about.max_tokens
        self.vocabulary = Vocabulary(about.pieces, about.unknown) if about.pieces else None
        """None: the manifest lists no pieces, and prompts are token ids."""

    def tokens(self, request: Mapping[str, Any]) -> list[int]:
        """The token ids of `prompt` or `messages`. Raises a ValueError that says what is wrong."""
        if "messages" in request:
            return self._encoded(_last_content(request["messages"]))
        prompt = request.get("prompt")
        if isinstance(prompt, str):
            return self._encoded(prompt)
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return prompt
        raise ValueError("prompt must be one text or one list of token ids")

    def most(self, value: object) -> int:
        """The most tokens of an answer: the value of `max_tokens`, or the manifest's for None."""
        if value is None:
            return self._most
        if type(value) is not int or value < 1:
            raise ValueError(
                f"max_tokens is {value!r:.40}, and must be a whole number of at least 1"
            )
        return value

    def text(self, tokens: Sequence[int]) -> str:
        return self.vocabulary.decode(tokens) if self.vocabulary else ""

    def _encoded(self, text: str) -> list[int]:
        if self.vocabulary is None:
            raise ValueError("the manifest lists no pieces of text: the prompt must be token ids")
        tokens = self.vocabulary.encode(text)
        if not tokens:
            raise ValueError("the prompt is empty")
        return tokens


def _last_content(messages: object) -> str:
    """The text of the last message; those before it are not read, as the model was trained on one prompt."""
    last = messages[-1] if isinstance(messages, list) and messages else None
    content = last.get("content") if isinstance(last, dict) else None
    if not isinstance(content, str):
        raise ValueError("messages must be a list, and the content of the last one a text")
    return content
