"""Reads sessions, such as conversations or agents with subagents. Each turn is a sample, and may wait for other turns."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.units import NS_PER_MS
from harness.datasets.parts import sources
from harness.datasets.parts.prompts.held import Prompt
from harness.datasets.parts.prompts.options import Options
from harness.datasets.parts.prompts.tokens import (
    BYTES_PER_TOKEN,
    MEMORY_LIMIT_BYTES,
    input_of,
    summary,
)
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.parts.sessions.history import linked
from harness.datasets.parts.sessions.own import MOST_DELAY_MS
from harness.datasets.parts.sessions.read import FORMATS, Settings, read_sessions
from harness.datasets.parts.sessions.turns import Blocks, Turn
from harness.datasets.text.prompts import prompt_of
from harness.errors import MOST_PROBLEMS, ConfigError, refuse
from harness.types import Array, Dataset, DatasetSetup, HasLiveHistory, SessionTurns

MOST_FILE_BYTES = 4 * 2**30
"""Maximum size of a sessions file. Larger files are refused before they are read, because all sessions are kept in
memory.
"""

BLOCK_TOKENS = 512
"""Number of tokens per block of hash_ids in Mooncake's traces."""

_MOST_BLOCK_TOKENS = 1 << 20
_SUFFIXES = (".jsonl", ".json", ".traj")
_RECORDED, _LIVE = "recorded", "live"
_BLOCKS, _OWN = 1, 2
"""Keys of two independent streams of random numbers."""

_NO_MESSAGES = [{"role": "user", "content": "."}]
_END_OF_MESSAGES = b'"messages":[{"role":"user","content":"."}]}'
_END_OF_TOKENS = b'"prompt":[0]}'
"""Endings of encoded requests. They are removed so that messages, or a prompt made from blocks, can be inserted."""


class _Turn(NamedTuple):
    """One turn, which is a sample."""

    prompt: Prompt
    """The prompt that is sent. The field `request` of the prompt does not contain the messages, or a prompt that is
    made from blocks.
    """
    messages: tuple[bytes, ...]
    """Encoded messages; () for a prompt that is a string or token IDs."""
    answers: Mapping[int, int]
    """Maps a place in `messages` to the dataset index of the turn whose answer belongs there; only for live answers."""
    after: tuple[int, ...]
    """Dataset indices of the turns that this turn waits for."""
    delay_ns: int
    blocks: Blocks | None

    @property
    def size(self) -> int:
        """Size of the prompt in token IDs, or in bytes."""
        if self.blocks is not None:
            return self.blocks.tokens
        return sum(map(len, self.messages)) or self.prompt.size

    @property
    def held_bytes(self) -> int:
        tokens = self.blocks.tokens if self.blocks is not None else 0
        prompt = sum(map(len, self.messages)) + len(self.messages)
        return len(self.prompt.request) + prompt + tokens * BYTES_PER_TOKEN


class SessionsDataset(LoadedRows):
    """Sessions. --data-dir is a file with sessions, or a folder with such files: .jsonl, .json, .traj.

    The supported formats are the harness's format (one object with `turns` per line), ShareGPT, messages with tool
    calls, SWE-agent, AIPerf's DAG, Weka, Mooncake and OpenTelemetry's spans. The format is recognised from the first
    object in a file. A turn is a line in the form of the dataset `prompts`. A turn may also contain `id` (the turn's
    name in the session), `after` (the ids of earlier turns whose answers the turn waits for; default: the previous
    turn) and `delay_ms` (time after the last of these answers, such as the time that a person or a tool takes; default:
    0).

    --dataset-option:
    format        name of the format (auto)
    history       recorded: earlier answers as in the file; live: as the model gave them in this run. Default: recorded
                  if the file has them
    most_delay_ms longest delay: longer ones are cut (3600000)
    block         tokens of a block of Mooncake's hash_ids (512)
    tokens        range of the token ids of prompts that are made from hash ids, excluding its end
    """

    options = ("format", "history", "most_delay_ms", "block", "tokens")

    def __init__(self, setup: DatasetSetup) -> None:
        self._input = input_of(setup, "sessions")
        self._setup, self._seed, options = setup, setup.seed, Options(setup.options)
        self._block = options.whole("block", BLOCK_TOKENS, _MOST_BLOCK_TOKENS)
        self._tokens = options.token_range()
        most_delay_ns = options.whole("most_delay_ms", MOST_DELAY_MS, MOST_DELAY_MS) * NS_PER_MS
        self._paths = _paths(setup)
        settings = Settings(setup.seed, self._block)
        found = read_sessions(self._paths, options.choice("format", FORMATS), settings)
        self._format, self._lengths = found.format, [len(turns) for turns in found.sessions]
        recorded = not any(turn.answers for turns in found.sessions for turn in turns)
        self._history = _history(options, recorded, self._paths[0])
        self.live_history = self._history == _LIVE
        """True if prompts contain the answers that the model gave earlier in this run."""
        self._turns = _turns(found.sessions, most_delay_ns, self._paths[0], live=self.live_history)
        self._cut = sum(t.delay_ns > most_delay_ns for turns in found.sessions for t in turns)
        held = np.cumsum([turn.held_bytes for turn in self._turns])
        self.performance_count = max(1, int((held <= MEMORY_LIMIT_BYTES).sum()))
        super().__init__(len(self._turns))

    def load(self, indices: Sequence[int]) -> None:
        self.hold_objects(indices, self._input, (self._request(index, {}) for index in indices))
        if self.live_history:
            self._arrays[self._input].setflags(write=True)

    def continue_with(self, index: int, answers: Mapping[int, bytes]) -> None:
        self._arrays[self._input][self._position[index]] = self._request(index, answers)

    def _request(self, index: int, answers: Mapping[int, bytes]) -> bytes:
        turn = self._turns[index]
        head = turn.prompt.request
        if turn.blocks is not None:
            ids = ",".join(str(i) for part in self._ids(index, turn.blocks) for i in part.tolist())
            return b'%b"prompt":[%b]}' % (head, ids.encode())
        if not turn.messages:
            return head
        messages = [*turn.messages]
        for place, source in turn.answers.items():
            if source in answers:
                messages[place] = _message(answers[source])
        return b'%b"messages":[%b]}' % (head, b",".join(messages))

    def _ids(self, index: int, blocks: Blocks) -> Sequence[Array]:
        """Returns the blocks and the remaining tokens. The block IDs seed the blocks, and the sample's number seeds the
        remaining tokens.
        """
        left, parts = blocks.tokens, []
        for block in blocks.ids:
            if left > 0:
                parts.append(self._drawn(blocks.block_tokens, _BLOCKS, blocks.scope, block)[:left])
                left -= blocks.block_tokens
        if left > 0:
            parts.append(self._drawn(left, _OWN, index))
        return parts

    def _drawn(self, count: int, *source: int) -> Array:
        random = np.random.default_rng([self._seed, *source])
        return random.integers(int(self._tokens.low), int(self._tokens.high), count)

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.array([self._turns[i].size for i in indices])

    def label(self, index: int) -> str | list[float] | None:
        return self._turns[index].prompt.reference

    def sessions(self) -> SessionTurns:
        counts = self._lengths
        delay_ns = np.array([turn.delay_ns for turn in self._turns], np.int64)
        after = [turn.after for turn in self._turns]
        return SessionTurns(np.repeat(np.arange(len(counts)), counts), after, delay_ns)

    def describe(self) -> Mapping[str, object]:
        delays = np.array([turn.delay_ns for turn in self._turns])
        models = Counter(turn.prompt.model for turn in self._turns)
        made = any(turn.blocks for turn in self._turns)
        return {
            "name": "sessions",
            "count": len(self),
            "source": str(self._paths[0] if len(self._paths) == 1 else self._paths[0].parent),
            "format": self._format,
            "history": self._history,
            "sessions": len(self._lengths),
            "turns": summary(np.array(self._lengths)),
            "delay_ms": summary(delays // NS_PER_MS),
            **({"cut_delays": self._cut} if self._cut else {}),
            **({"models": dict(sorted(models.items()))} if [*models] != [""] else {}),
            **({"draws_tokens": True} if any(t.prompt.is_drawn for t in self._turns) else {}),
            **({"tokens": str(self._tokens)} if made else {}),
            "digest": self._digest(made=made),
        }

    def _digest(self, *, made: bool) -> str:
        files = sources.digest({path.name: path for path in self._paths}, self._setup)
        drawn = (self._seed, *self._tokens, self._block) if made else ()
        return sources.with_options(files, (*drawn, self._history, self._format))


def _paths(setup: DatasetSetup) -> list[Path]:
    path = sources.given_path(
        setup, "sessions", "a file with sessions, or a folder with such files"
    )
    found = [path]
    if path.is_dir():
        found = sorted(p for p in path.iterdir() if p.suffix in _SUFFIXES and p.is_file())
    elif not path.is_file():
        raise ConfigError(f"--data-dir {path} is neither a file nor a folder: name a file")
    if not found:
        raise ConfigError(f"{path} has no {', '.join(_SUFFIXES)} file: name a file with sessions")
    if sum(one.stat().st_size for one in found) > MOST_FILE_BYTES:
        raise ConfigError(f"{path} is larger than {MOST_FILE_BYTES // 2**30} GiB: split it")
    return found


def _history(options: Options, recorded: bool, path: Path) -> str:
    """Returns the kind of history that the user has chosen. The default is `recorded` if the file records answers."""
    default = _RECORDED if recorded else _LIVE
    chosen = options.choice("history", (default, _LIVE if recorded else _RECORDED))
    if chosen == _RECORDED and not recorded:
        raise ConfigError(
            f"--dataset-option history=recorded: {path} does not record the model's answers: drop the option"
        )
    return chosen


def _turns(
    sessions: Sequence[Sequence[Turn]], most_delay_ns: int, path: Path, *, live: bool
) -> list[_Turn]:
    """Returns the turns of all sessions. Raises a ConfigError that lists each session that cannot be sent."""
    taken: list[_Turn] = []
    problems: list[str] = []
    for number, turns in enumerate(sessions, 1):
        try:
            taken += _session(turns, len(taken), most_delay_ns, live=live)
        except ValueError as e:
            problems.append(f"{path}: session {number}, {e}")
            if len(problems) == MOST_PROBLEMS:
                break
    refuse(problems)
    return taken


def _session(turns: Sequence[Turn], first: int, most_delay_ns: int, *, live: bool) -> list[_Turn]:
    """Returns the turns of a session. first: dataset index of the first turn."""
    # This map lets equal messages in several turns share one object.
    known: dict[bytes, bytes] = {}
    prompts, encoded = [], []
    for position, turn in enumerate(turns, 1):
        try:
            prompt, messages = _encoded(turn)
        except ValueError as e:
            raise ValueError(f"turn {position}: {e}") from None
        prompts.append(prompt)
        encoded.append(tuple(known.setdefault(message, message) for message in messages))
    answers = linked(turns, encoded) if live else [{}] * len(turns)
    return [
        _Turn(
            prompt,
            messages,
            {place: first + source for place, source in found.items()},
            tuple(first + position for position in turn.after),
            min(turn.delay_ns, most_delay_ns),
            turn.blocks,
        )
        for turn, prompt, messages, found in zip(turns, prompts, encoded, answers, strict=True)
    ]


def _encoded(turn: Turn) -> tuple[Prompt, Sequence[bytes]]:
    """Returns the prompt and its messages. Raises a ValueError with a one-sentence reason."""
    if turn.blocks is not None:
        _, prompt = prompt_of({**turn.row, "input_ids": [0]})
        return prompt._replace(request=prompt.request.removesuffix(_END_OF_TOKENS)), ()
    messages = turn.row.get("messages")
    if not isinstance(messages, list) or not messages:
        return prompt_of(turn.row)[1], ()
    _, prompt = prompt_of({**turn.row, "messages": _NO_MESSAGES})
    head = prompt._replace(request=prompt.request.removesuffix(_END_OF_MESSAGES))
    return head, [_encoded_message(message) for message in messages]


def _encoded_message(message: Any) -> bytes:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("messages has a message without a role")
    if not isinstance(message.get("content"), str | list) and not message.get("tool_calls"):
        raise ValueError(f"the {message['role']!r:.40} message has no content")
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise ValueError(
            "it has a lone surrogate (half a character), which UTF-8 cannot encode"
        ) from None


def _message(answer: bytes) -> bytes:
    """Returns an answer of the model as an encoded message."""
    content = answer.decode("utf-8", "replace")
    message = {"role": "assistant", "content": content}
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


_: type[Dataset] = SessionsDataset
__: type[HasLiveHistory] = SessionsDataset
