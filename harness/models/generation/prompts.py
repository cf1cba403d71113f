"""Reads the prompt of a request in the format of OpenAI's API. A prompt is a list of token ids, a string or a chat."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from harness.models.generation.unfit_prompt import UnfitPrompt
from harness.models.generation.vocabulary import Vocabulary
from harness.models.manifest.schema import Generation

_TEXT_PARTS = ("text", "input_text", "output_text")
"""Types of message parts that vLLM reads as text."""


class Prompts:
    """Reads prompts for one model."""

    def __init__(self, about: Generation) -> None:
        self._most = about.max_tokens
        self.vocabulary = Vocabulary(about.pieces, about.unknown) if about.pieces else None
        """None if the manifest does not list pieces, in which case prompts must be token ids."""

    def tokens(self, request: Mapping[str, Any]) -> list[int]:
        """Returns the token ids of `prompt` or `messages`. Raises ValueError with a description of the fault."""
        first, *more = self.all_tokens(request)
        if more:
            raise ValueError("prompt must be one string or one list of token ids")
        return first

    def all_tokens(self, request: Mapping[str, Any]) -> list[list[int]]:
        """Returns the token ids of each prompt. `prompt` may be a list of strings or a list of token id lists."""
        if request.get("messages") is not None:
            return [self._encoded(_last_text(request["messages"]))]
        prompt = request.get("prompt")
        prompts = prompt if _holds_prompts(prompt) else [prompt]
        return [self._one(each) for each in prompts]

    def _one(self, prompt: object) -> list[int]:
        if isinstance(prompt, str):
            return self._encoded(prompt)
        if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
            return prompt
        raise ValueError("prompt must be a string, a list of token ids, or a list of either")

    def most(self, value: object) -> int:
        """Returns the maximum number of tokens in an answer, given the value in a request. None selects the manifest's
        value.
        """
        if value is None:
            return self._most
        if type(value) is not int or value < 1:
            raise ValueError(
                f"max_tokens is {value!r:.40}, but must be a whole number of at least 1"
            )
        return value

    def text(self, tokens: Sequence[int]) -> str:
        return self.vocabulary.decode(tokens) if self.vocabulary else ""

    def _encoded(self, text: str) -> list[int]:
        if self.vocabulary is None:
            raise UnfitPrompt(
                "the prompt must be token ids, because the manifest does not list the "
                "tokens' texts in `pieces`",
                "list them in `generation.pieces`, or use prompts of token ids",
            )
        tokens = self.vocabulary.encode(text)
        if not tokens:
            raise ValueError("the prompt is empty")
        return tokens


def _holds_prompts(prompt: object) -> TypeGuard[list[object]]:
    return isinstance(prompt, list) and any(isinstance(each, str | list) for each in prompt)


def _last_text(messages: object) -> str:
    """Returns the text of the last message. Ignores earlier messages, because the model was trained on single
    prompts.
    """
    if not isinstance(messages, list) or not messages:
        raise ValueError("messages must be a list of at least one message")
    *_, last = [_text(message) for message in messages]
    if last is None:
        raise ValueError("the last message has no content: end with a message that has text")
    return last


def _text(message: object) -> str | None:
    """Returns the text, or None for a message without content, such as a tool call. Joins several parts of a message as
    vLLM does.
    """
    if not isinstance(message, dict):
        raise ValueError(f"a message is {message!r:.40}, but must be an object")
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(map(_part, content))
    if content is None or isinstance(content, str):
        return content
    raise ValueError(
        f"the content of a message is {content!r:.40}, but must be a string or a list of parts"
    )


def _part(part: object) -> str:
    """Returns the text of a part. Raises ValueError with the part's type if the part has no text, for example because
    it is an image.
    """
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if not isinstance(part, dict) or kind not in _TEXT_PARTS:
        what = f"of type {kind!r:.40}" if kind is not None else f"{part!r:.40}"
        raise ValueError(f"the content of a message has a part {what}: the model takes only text")
    text = part.get("text")
    if not isinstance(text, str):
        raise ValueError(f"the text of a part is {text!r:.40}, but must be a string")
    return text
