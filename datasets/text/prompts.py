"""Reads prompts for language models: one JSON object per line, or one row of a Parquet file.

The model gets `input_ids` (token IDs), `prompt` (a string) or `messages` (a chat). All lines must use the same one of
these keys. `max_tokens` limits the length of the answer. `reference` is the right answer (a string, or the numbers of a
vector). The keys in REQUEST, such as `model` and `tools`, and everything in `body` become fields of the request. Other
keys are not sent. A note lists the keys that are not sent; a key that looks misspelt is refused.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from harness.core.extras import how_to_install
from harness.core.files import parse_json
from harness.core.formats.prompt_fields import draws_tokens, framed
from harness.datasets.parts import sources
from harness.datasets.parts.prompts.held import HeldPrompts, Prompt
from harness.datasets.parts.prompts.keys import KEYS, KINDS, REQUEST
from harness.datasets.parts.prompts.tokens import input_of
from harness.datasets.parts.sources import refuse, unreadable
from harness.errors import MOST_PROBLEMS, ConfigError, PluginUnavailable
from harness.types import Dataset, DatasetSetup

_NAMES = ("id", "custom_id", "method", "url")
"""Keys that identify a line, e.g. in OpenAI's batch files. Such keys are not fields of a request."""

_LIKE = 0.85
"""An unknown key that is at least this similar to a known key counts as misspelt."""

_MOST_UNSENT = 16
"""Maximum number of unknown keys that a note lists."""

MOST_LINE_BYTES = 16 * 2**20
MOST_FILE_BYTES = 4 * 2**30
"""Maximum sizes of a line and a file. Larger lines and files are refused before they are read, because all prompts are
kept in memory.
"""

MOST_TOKEN = 2**31
"""All token IDs must be below this limit."""

_FIELD = re.compile("[A-Za-z0-9_]{1,64}")
_MODEL = re.compile(r'[^"\\\x00-\x1f]+')
_NO_FIELDS = (*KINDS, "fields", "max_tokens", "stream", "stream_options", "return_token_ids")
"""Names that a line's `body` must not contain."""

_SUFFIXES = (".jsonl", ".parquet")
_ROWS_READ = 256
"""A Parquet file is read in blocks of this many rows."""


class PromptsDataset(HeldPrompts):
    """Prompts. --data-dir is a .jsonl or .parquet file, or a folder with one such file.

    The model's only input is one string per sample. The string is the part of a request that differs between samples,
    and is encoded before the run.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        name = input_of(setup, "prompts")
        self._setup = setup
        self._path = sources.one_file(setup, "prompts", *_SUFFIXES, most_bytes=MOST_FILE_BYTES)
        is_table = self._path.suffix == ".parquet"
        rows = _table(self._path) if is_table else json_lines(self._path)
        self._kind, prompts, self._unsent = _read(self._path, rows)
        super().__init__(name, prompts)

    def describe(self) -> Mapping[str, object]:
        sizes = [prompt.size for prompt in self._prompts]
        models = Counter(prompt.model for prompt in self._prompts)
        drawn = any(prompt.is_drawn for prompt in self._prompts)
        return {
            "name": "prompts",
            "count": len(self),
            "source": str(self._path),
            "prompts": self._kind,
            "unit": "tokens" if self._kind == "input_ids" else "bytes",
            "lengths": {"min": min(sizes), "median": float(np.median(sizes)), "max": max(sizes)},
            **({"models": dict(sorted(models.items()))} if [*models] != [""] else {}),
            **({"draws_tokens": True} if drawn else {}),
            **({"notes": [_unsent_note(self._unsent)]} if self._unsent else {}),
            "digest": sources.digest({self._path.name: self._path}, self._setup),
        }


Row = tuple[str, object]
"""(place, content of a line). If a line cannot be read, the content is a ValueError with the reason."""


def json_lines(path: Path) -> Iterator[Row]:
    try:
        with path.open("rb") as file:
            number = 0
            while line := file.readline(MOST_LINE_BYTES + 1):
                number += 1
                place = f"{path}:{number}"
                if len(line) > MOST_LINE_BYTES:
                    raise ConfigError(f"{place}: the line is longer than {MOST_LINE_BYTES} bytes")
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if line.strip():
                    yield place, _json(line)
    except OSError as e:
        raise unreadable(path, e) from e


def _json(line: bytes) -> object:
    try:
        return parse_json(line.decode().rstrip("\r\n"))
    except json.JSONDecodeError as e:
        return ValueError(f"it is not valid JSON, at character {e.colno}")
    except UnicodeDecodeError as e:
        return ValueError(f"it is not UTF-8, at byte {e.start + 1}")
    except (RecursionError, ValueError) as e:
        return ValueError(f"it is not valid JSON: {e}")


def _table(path: Path) -> Iterator[Row]:
    pq = _pyarrow()
    try:
        file = pq.ParquetFile(path)
        names = file.schema_arrow.names
        unknown = dict.fromkeys(name for name in names if name not in KEYS)
        wanted = [name for name in names if name in KEYS]
        number = 0
        for batch in file.iter_batches(_ROWS_READ, columns=wanted):
            for row in batch.to_pylist():
                number += 1
                known = {k: v for k, v in row.items() if v is not None}
                yield f"{path}: row {number}", {**known, **unknown}
    except (OSError, ValueError) as e:  # pyarrow's errors are subclasses of ValueError
        raise unreadable(path, e) from e


def _pyarrow() -> ModuleType:
    try:  # imported here, because only Parquet files need the package
        pq = import_module("pyarrow.parquet")
    except ModuleNotFoundError as e:
        raise PluginUnavailable(
            f"dataset 'prompts' with a .parquet file needs the module {e.name!r}: "
            f"{how_to_install('parquet')}"
        ) from e
    return pq


def _read(path: Path, rows: Iterable[Row]) -> tuple[str, list[Prompt], list[str]]:
    """Returns the common key, the prompts, and the keys that are not sent.

    Raises a ConfigError that lists each unusable row.
    """
    kind, first, prompts = "", "", []
    problems: list[str] = []
    unsent: dict[str, None] = {}
    for place, content in rows:
        try:
            mine, prompt = prompt_of(content)
            unsent.update(dict.fromkeys(_unknown(content)))
        except ValueError as e:
            problems.append(f"{place}: {e}")
            if len(problems) == MOST_PROBLEMS:
                break
            continue
        if not kind:
            kind, first = mine, place
        elif mine != kind:
            problems.append(f"{place} has {mine!r}, but {first} has {kind!r}: use only one of them")
            break
        prompts.append(prompt)
    refuse(problems)
    if not prompts:
        raise ConfigError(f"{path} has no prompts: nothing can be measured")
    return kind, prompts, [*unsent]


def _unknown(row: object) -> list[str]:
    """Returns the keys of a line that are not read. Raises a ValueError if a key seems to be misspelt."""
    unknown = [key for key in row if key not in KEYS] if isinstance(row, dict) else []
    for key in unknown:
        if near := get_close_matches(key, KEYS, n=1, cutoff=_LIKE):
            raise ValueError(f"the key {key!r:.40} is unknown: did you mean {near[0]!r}?")
    return [key for key in unknown if key not in _NAMES]


def _unsent_note(keys: Sequence[str]) -> str:
    more = f" and {len(keys) - _MOST_UNSENT} more" if len(keys) > _MOST_UNSENT else ""
    return (
        f"not sent: {', '.join(f'{key:.40}' for key in keys[:_MOST_UNSENT])}{more}; "
        "put further fields of a request into `body`"
    )


def prompt_of(row: object) -> tuple[str, Prompt]:
    """Returns the kind of prompt in a line, and the prompt. Raises a ValueError with a one-sentence reason."""
    if isinstance(row, ValueError):
        raise row
    if not isinstance(row, dict):
        raise ValueError("it is not a JSON object")
    row = _unfolded(row)
    kinds = [kind for kind in KINDS if kind in row]
    if len(kinds) != 1:
        have = " and ".join(kinds) or "none"
        raise ValueError(f"it needs one of {', '.join(KINDS)}, but has {have}")
    kind = kinds[0]
    size, content = _CHECKS[kind](row[kind])
    most = row.get("max_tokens", row.get("max_completion_tokens"))
    if most is not None and (type(most) is not int or not 0 < most < MOST_TOKEN):
        raise ValueError(f"max_tokens is {most!r:.40}, but must be a whole number of at least 1")
    reference = row.get("reference")
    if reference is not None and not isinstance(reference, str) and not _is_vector(reference):
        raise ValueError(
            f"reference is {reference!r:.40}, but must be a string or a list of numbers"
        )
    fields = {} if most is None else {"max_tokens": most}
    fields["messages" if kind == "messages" else "prompt"] = content
    further = _further(row)
    text = json.dumps(
        framed(further, fields), ensure_ascii=False, separators=(",", ":"), allow_nan=False
    )
    try:
        request = text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "it has a lone surrogate (half a character), which UTF-8 cannot encode"
        ) from None
    drawn = draws_tokens(further)
    return kind, Prompt(request, size or len(request), reference, further.get("model", ""), drawn)


def _is_vector(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(x) in (int, float) for x in value)


def _unfolded(row: dict[str, Any]) -> dict[str, Any]:
    """Moves the prompt out of `body` and returns the line, because OpenAI's batch files have the prompt in `body`."""
    body = row.get("body")
    if not isinstance(body, dict) or any(kind in row for kind in KINDS):
        return row
    outside = {key: body[key] for key in (*KINDS, "max_tokens") if key in body}
    rest = {key: value for key, value in body.items() if key not in outside}
    return {**row, **outside, "body": rest}


def _further(row: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of the request except the prompt and its token limit. `model` comes first."""
    body = row.get("body", {})
    if not isinstance(body, dict):
        raise ValueError(f"body is {body!r:.40}, but must be an object")
    fields = {**body, **{key: row[key] for key in REQUEST if key in row}}
    for name in fields:
        if not _FIELD.fullmatch(name) or name in _NO_FIELDS:
            raise ValueError(
                f"body has the field {name!r:.40}, which the harness sets or cannot send"
            )
    model = fields.get("model", "")
    if not isinstance(model, str) or ("model" in fields and not _MODEL.fullmatch(model)):
        raise ValueError(f"model is {model!r:.40}, but must be a name")
    if fields.get("n", 1) != 1:
        raise ValueError("n must be 1: a prompt has one answer")
    return fields


def _ids(value: object) -> tuple[int, Any]:
    if not isinstance(value, list) or not value:
        raise ValueError("input_ids must be a list of at least one token id")
    for token in value:
        if type(token) is not int or not 0 <= token < MOST_TOKEN:
            raise ValueError(f"input_ids has {token!r:.40}, which is not a token id")
    return len(value), value


def _text(value: object) -> tuple[int, Any]:
    if not isinstance(value, str) or not value:
        raise ValueError("prompt must be a non-empty string")
    return len(value.encode("utf-8", "replace")), value


def _messages(value: object) -> tuple[int, Any]:
    if not isinstance(value, list) or not value:
        raise ValueError("messages must be a list of at least one message")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise ValueError("messages has a message without a role")
        if not isinstance(message.get("content"), str | list):
            raise ValueError(f"the {message['role']!r:.40} message has no content")
    return 0, value


_CHECKS = {"input_ids": _ids, "prompt": _text, "messages": _messages}

_: type[Dataset] = PromptsDataset
