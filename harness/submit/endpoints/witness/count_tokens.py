"""Counts tokens in the same way as MLCommons' client. This script runs in the client's environment.

    python count_tokens.py FOLDER [--trust]

FOLDER contains the tokenizer. Each input line is a JSON list of texts and messages; a message has the form [content,
reasoning, tool calls]. Each output line is a JSON list of counts, or {"error": TEXT}. Counting texts requires the
package `tokenizers`, and counting messages requires `transformers`, which renders the chat template. --trust allows
code in FOLDER to run.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_USER = {"role": "user", "content": ""}
"""Message that precedes the answer. The client counts an answer's tokens as a reply to an empty question."""


class Counter:
    def __init__(self, folder: Path, *, trust: bool) -> None:
        self._folder, self._trust = folder, trust
        self._fast: Any = None
        self._template: _Template | None = None
        file = folder / "tokenizer.json"
        if file.is_file():
            from tokenizers import Tokenizer

            self._fast = Tokenizer.from_file(str(file))
            self._fast.no_padding()
            self._fast.no_truncation()

    def count(self, parts: Sequence[Any]) -> list[int]:
        texts = [part for part in parts if isinstance(part, str)]
        counts = iter(self._of_texts(texts))
        return [
            next(counts) if isinstance(part, str) else self._loaded().of_message(*part)
            for part in parts
        ]

    def _of_texts(self, texts: Sequence[str]) -> list[int]:
        if self._fast is None:
            return [self._loaded().of_text(text) for text in texts]
        return [len(row.ids) for row in self._fast.encode_batch(texts, add_special_tokens=False)]

    def _loaded(self) -> "_Template":
        if self._template is None:
            self._template = _Template(self._folder, trust=self._trust)
        return self._template


class _Template:
    """A tokenizer and its chat template."""

    def __init__(self, folder: Path, *, trust: bool) -> None:
        from transformers import AutoTokenizer
        from transformers.utils import logging

        logging.set_verbosity_error()
        self._tokenizer = AutoTokenizer.from_pretrained(str(folder), trust_remote_code=trust)
        try:
            self._rendered([_USER])
            self._frame = self._rendered([_USER, {"role": "assistant", "content": ""}])
        except Exception:  # noqa: BLE001 - a template raises anything; the client then subtracts nothing
            self._frame = 0

    def of_text(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def of_message(self, content: str, reasoning: str, calls: list[Any]) -> int:
        """Returns the number of tokens in the message, without the tokens that the template also puts around an empty
        answer.
        """
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = list(map(_with_mapping, calls))
        try:
            return max(0, self._rendered([_USER, message]) - self._frame)
        except Exception:  # noqa: BLE001 - as the client: the parts as one text
            shown = json.dumps(calls, separators=(",", ":"), ensure_ascii=False) if calls else ""
            parts = [part for part in (content, reasoning, shown) if part]
            return len(self._tokenizer.tokenize("\n".join(parts)))

    def _rendered(self, messages: Sequence[dict[str, Any]]) -> int:
        ids = self._tokenizer.apply_chat_template(
            messages, tokenize=True, add_generation_prompt=False, return_dict=False
        )
        return len(ids)


def _with_mapping(call: dict[str, Any]) -> dict[str, Any]:
    """Returns the call with its arguments as a mapping, because templates require a mapping but servers send JSON text."""
    function = call.get("function") or {}
    try:
        arguments = json.loads(function["arguments"])
    except (KeyError, TypeError, ValueError):
        return call
    if not isinstance(arguments, dict):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def main() -> None:
    counter = Counter(Path(sys.argv[1]), trust="--trust" in sys.argv[2:])
    for line in sys.stdin:
        try:
            answer: object = counter.count(json.loads(line))
        except Exception as e:  # noqa: BLE001 - packages and tokenizers raise anything
            answer = {"error": f"{type(e).__name__}: {e}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
