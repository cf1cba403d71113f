"""Reads sessions: conversations, agents and their subagents. Each turn is a sample, and waits for others."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from harness.core.files import parse_json
from harness.core.units import NS_PER_MS
from harness.datasets.parts import sources
from harness.datasets.parts.prompts.tokens import MEMORY_LIMIT_BYTES, input_of, summary
from harness.datasets.parts.rows import LoadedRows
from harness.datasets.text.prompts import Prompt, prompt_of
from harness.errors import MOST_PROBLEMS, ConfigError, refuse
from harness.types import Array, Dataset, DatasetSetup, SessionTurns

MOST_FILE_BYTES = 4 * 2**30
"""The limit. A larger file is refused before it is read, because all sessions are held in memory."""

MOST_DELAY_MS = 3_600_000
"""The longest delay: one hour."""

_SUFFIX = ".jsonl"


class _Turn(NamedTuple):
    """One sample."""

    prompt: Prompt
    after: tuple[int, ...]
    """Positions of earlier turns of the session."""
    delay_ns: int


class SessionsDataset(LoadedRows):
    """--data-dir is a .jsonl file with one session per line, or a folder with one such file.

    A session is an object with `turns`. A turn is a line of the dataset `prompts` and may have `id` (its name in the
    session), `after` (the ids of earlier turns whose answers it waits for; default: the turn before) and `delay_ms`
    (time after the last of these answers, e.g. a person's or a tool's; default: 0). Prompts are sent as recorded.
    """

    def __init__(self, setup: DatasetSetup) -> None:
        self._input = input_of(setup, "sessions")
        self._setup, self._path = (
            setup,
            sources.one_file(setup, "sessions", _SUFFIX, most_bytes=MOST_FILE_BYTES),
        )
        self._sessions = _read(self._path)
        self._turns = [turn for turns in self._sessions for turn in turns]
        sizes = np.array([len(turn.prompt.request) for turn in self._turns], np.int64)
        self.performance_count = max(1, int((np.cumsum(sizes) <= MEMORY_LIMIT_BYTES).sum()))
        super().__init__(len(self._turns))

    def __len__(self) -> int:
        return len(self._turns)

    def load(self, indices: Sequence[int]) -> None:
        held = np.empty(len(indices), object)
        for row, index in enumerate(indices):
            held[row] = self._turns[index].prompt.request
        self.hold(indices, {self._input: held})

    def lengths(self, indices: Sequence[int]) -> Array:
        return np.array([self._turns[i].prompt.size for i in indices])

    def label(self, index: int) -> str | None:
        return self._turns[index].prompt.reference

    def sessions(self) -> SessionTurns:
        counts = [len(turns) for turns in self._sessions]
        first = np.repeat(np.cumsum([0, *counts[:-1]]), counts).tolist()
        after = [
            tuple(begin + position for position in turn.after)
            for begin, turn in zip(first, self._turns, strict=True)
        ]
        delay_ns = np.array([turn.delay_ns for turn in self._turns], np.int64)
        return SessionTurns(np.repeat(np.arange(len(counts)), counts), after, delay_ns)

    def describe(self) -> Mapping[str, object]:
        turns = np.array([len(turns) for turns in self._sessions])
        delays = np.array([turn.delay_ns for turn in self._turns])
        return {
            "name": "sessions",
            "count": len(self),
            "source": str(self._path),
            "sessions": len(self._sessions),
            "turns": summary(turns),
            "delay_ms": summary(delays // NS_PER_MS),
            "digest": sources.digest({self._path.name: self._path}, self._setup),
        }


def _read(path: Path) -> list[list[_Turn]]:
    """Raises a ConfigError that lists each session that cannot be used."""
    problems: list[str] = []
    sessions: list[list[_Turn]] = []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            sessions.append(_session(parse_json(line)))
        except (ValueError, RecursionError) as e:
            text = "it is not JSON" if isinstance(e, json.JSONDecodeError) else str(e)
            problems.append(f"{path}:{number}: {text}")
            if len(problems) == MOST_PROBLEMS:
                break
    refuse(problems)
    if not sessions:
        raise ConfigError(f"{path} has no sessions: nothing can be measured")
    return sessions


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from file
    except (OSError, UnicodeDecodeError) as e:
        raise sources.unreadable(path, e) from e


def _session(content: Any) -> list[_Turn]:
    rows = content.get("turns") if isinstance(content, dict) else None
    if not isinstance(rows, list) or not rows:
        raise ValueError("a session needs `turns`, a list of at least one turn")
    positions: dict[str, int] = {}
    turns: list[_Turn] = []
    for position, row in enumerate(rows):
        try:
            _, prompt = prompt_of(row)
            turns.append(_Turn(prompt, _after(row, position, positions), _delay_ns(row)))
            name = str(row.get("id", position))
            if name in positions:
                raise ValueError(f"the id {name!r:.40} appears twice")
        except ValueError as e:
            raise ValueError(f"turn {position + 1}: {e}") from None
        positions[name] = position
    return turns


def _after(row: Mapping[str, Any], position: int, positions: Mapping[str, int]) -> tuple[int, ...]:
    names: Any = row.get("after", None if position else [])
    if names is None:
        return (position - 1,)
    if not isinstance(names, list):
        raise ValueError(f"after is {names!r:.40}, and must be a list of ids")
    unknown = [name for name in names if str(name) not in positions]
    if unknown:
        raise ValueError(f"after names {unknown[0]!r:.40}, which is not an earlier turn")
    return tuple(sorted({positions[str(name)] for name in names}))


def _delay_ns(row: Mapping[str, Any]) -> int:
    delay = row.get("delay_ms", 0)
    if (
        isinstance(delay, bool)
        or not isinstance(delay, int | float)
        or not 0 <= delay <= MOST_DELAY_MS
    ):
        raise ValueError(f"delay_ms is {delay!r:.40}, and must be from 0 to {MOST_DELAY_MS:,}")
    return round(delay * NS_PER_MS)


_: type[Dataset] = SessionsDataset
