"""Reads recorded conversations in ShareGPT's format or as `messages`. Each turn is a sample, whose prompt is the
conversation up to this turn.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.core.files import parse_json
from harness.datasets.parts import sources
from harness.datasets.parts.prompts.options import Options
from harness.datasets.parts.prompts.tokens import MEMORY_LIMIT_BYTES, input_of, summary
from harness.datasets.parts.rows import LoadedRows
from harness.errors import ConfigError
from harness.types import Array, Dataset, DatasetSetup

MOST_FILE_BYTES = 4 * 2**30
"""Maximum size of a conversations file. A larger file is refused before it is read, because all conversations are kept
in memory.
"""

MOST_TOKENS = 2**31 - 1
_SUFFIXES = (".json", ".jsonl")
_ROLES = {
    **dict.fromkeys(("user", "human"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt"), "assistant"),
    "system": "system",
}


class _Message(NamedTuple):
    role: str
    text: str
    encoded: bytes
    """The message, encoded for a request."""


class _Turn(NamedTuple):
    """One turn, which is a sample."""

    conversation: tuple[_Message, ...]
    messages: int
    """Number of messages that are sent to the model. The next message, if any, is the recorded answer."""
    number: int
    """Position of the turn in the conversation, from 0."""


class ConversationsDataset(LoadedRows):
    """Conversations. --data-dir is a .json file with a list of conversations, a .jsonl file with one conversation per
    line, or a folder with one such file.

    A conversation is an object with `conversations` (ShareGPT: `from`, `value`) or `messages` (`role`, `content`). The
    prompt of a turn contains the recorded answers instead of this model's answers, so that every run sends the same
    prompts. A conversation is cut before the first message whose role may not come next.

    --dataset-option:
    max_tokens  maximum number of tokens in each answer
    """

    options = ("max_tokens",)

    def __init__(self, setup: DatasetSetup) -> None:
        self._input = input_of(setup, "conversations")
        self._path, self._setup = (
            sources.one_file(setup, "conversations", *_SUFFIXES, most_bytes=MOST_FILE_BYTES),
            setup,
        )
        most = Options(setup.options).text("max_tokens", "")
        self._head = b'{"messages":['
        if most:
            bound = Options(setup.options).whole("max_tokens", 1, MOST_TOKENS)
            self._head = b'{"max_tokens":%d,"messages":[' % bound
        found = [_messages(content) for content in _contents(self._path)]
        self._conversations = [messages for messages in found if messages]
        self._left_out = len(found) - len(self._conversations)
        self._turns = [t for c in self._conversations for t in _turns(c)]
        if not self._turns:
            raise ConfigError(
                f"{self._path} has no conversation that begins with a user's message: nothing can be measured"
            )
        self._sizes = np.array([_size(turn) for turn in self._turns], np.int64)
        self.performance_count = max(1, int((np.cumsum(self._sizes) <= MEMORY_LIMIT_BYTES).sum()))
        super().__init__(len(self._turns))

    def load(self, indices: Sequence[int]) -> None:
        self.hold_objects(indices, self._input, map(self._request, indices))

    def _request(self, index: int) -> bytes:
        conversation, messages, _ = self._turns[index]
        said = b",".join(message.encoded for message in conversation[:messages])
        return b"".join((self._head, said, b"]}"))

    def turns(self) -> Array:
        return np.array([turn.number for turn in self._turns])

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.take(self._sizes, indices)

    def label(self, index: int) -> str | None:
        conversation, messages, _ = self._turns[index]
        return conversation[messages].text if messages < len(conversation) else None

    def describe(self) -> Mapping[str, object]:
        turns = np.array([sum(m.role == "user" for m in c) for c in self._conversations])
        return {
            "name": "conversations",
            "count": len(self),
            "source": str(self._path),
            "prompts": "messages",
            "unit": "bytes",
            "lengths": summary(self._sizes),
            "conversations": len(self._conversations),
            "turns": summary(turns),
            **({"left_out": self._left_out} if self._left_out else {}),
            "digest": self._digest(),
        }

    def _digest(self) -> str:
        files = sources.digest({self._path.name: self._path}, self._setup)
        return hashlib.sha256(files.encode() + self._head).hexdigest()


def _contents(path: Path) -> Iterator[object]:
    """Yields the entries of the file without checking whether they are conversations."""
    try:
        with path.open(encoding="utf-8-sig") as file:
            if path.suffix == ".json":
                content = _json(file.read(), str(path))
                if not isinstance(content, list):
                    raise ConfigError(f"{path} is not a list of conversations")
                yield from content
                return
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield _json(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as e:
        raise sources.unreadable(path, e) from e


def _json(text: str, place: str) -> object:
    try:
        return parse_json(text)
    except json.JSONDecodeError as e:
        raise ConfigError(f"{place} is not valid JSON, at character {e.pos + 1}") from e
    except (ValueError, RecursionError) as e:
        raise ConfigError(f"{place} is not valid JSON: {e}") from e


def _messages(content: object) -> tuple[_Message, ...]:
    """Returns the messages of a conversation up to the first message that may not come next; () if no message can be
    sent.
    """
    rows = (
        content.get("conversations", content.get("messages")) if isinstance(content, dict) else None
    )
    taken: list[_Message] = []
    for message in map(_message, rows if isinstance(rows, list) else ()):
        if message is None or not _may_follow(message.role, taken):
            break
        taken.append(message)
    return tuple(taken) if any(message.role == "user" for message in taken) else ()


def _may_follow(role: str, before: Sequence[_Message]) -> bool:
    """Returns whether a message with this role may come next: a system message may come first, then user and model
    alternate.
    """
    last = before[-1].role if before else ""
    return role in {"": ("system", "user"), "system": ("user",), "user": ("assistant",)}.get(
        last, ("user",)
    )


def _message(row: object) -> _Message | None:
    if not isinstance(row, dict):
        return None
    role = _ROLES.get(str(row.get("from", row.get("role"))))
    text = row.get("value", row.get("content"))
    if role is None or not isinstance(text, str) or not text:
        return None
    encoded = json.dumps({"role": role, "content": text}, ensure_ascii=False, separators=(",", ":"))
    try:
        return _Message(role, text, encoded.encode())
    except UnicodeEncodeError:  # the text contains a lone surrogate, which is half a character
        return None


def _turns(conversation: tuple[_Message, ...]) -> Iterable[_Turn]:
    asked = (place for place, message in enumerate(conversation) if message.role == "user")
    return (_Turn(conversation, place + 1, number) for number, place in enumerate(asked))


def _size(turn: _Turn) -> int:
    """Returns the size of the messages in bytes."""
    return sum(len(m.encoded) + 1 for m in turn.conversation[: turn.messages])


_: type[Dataset] = ConversationsDataset
