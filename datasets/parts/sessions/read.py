"""Reads a file of sessions in any known format. The format is recognised from the content of the file."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.files import WRONG_CONTENT, parse_json
from harness.datasets.parts.sessions import agentic, chats, dag, mooncake, otel, own, weka
from harness.datasets.parts.sessions.turns import Turn
from harness.datasets.parts.sources import unreadable
from harness.errors import MOST_PROBLEMS, ConfigError, refuse, type_and_text

_Row = tuple[str, Mapping[str, Any]]
"""Place and content of an object."""
_Session = tuple[str, list[Turn]]
"""Place and turns of a session."""


class Settings(NamedTuple):
    """Options that the formats need."""

    seed: int
    block_tokens: int
    """Number of tokens per block in Mooncake's hash_ids."""


class Format(NamedTuple):
    name: str
    is_mine: Callable[[Mapping[str, Any]], bool]
    """Returns whether the first object of a file shows that the file has this format."""
    read: Callable[[Sequence[_Row], Settings], Iterable[_Session]]
    """Returns the sessions in a file's objects. Raises a ValueError that names the place."""


class Found(NamedTuple):
    format: str
    sessions: list[list[Turn]]


def _each(one: Callable[[Mapping[str, Any], int], list[Turn]]) -> Callable[..., Iterator[_Session]]:
    """Returns a reader of files in which each object is one session. one: reads an object, and also receives the
    object's number.
    """

    def read(rows: Sequence[_Row], _settings: Settings) -> Iterator[_Session]:
        problems: list[str] = []
        for number, (place, row) in enumerate(rows):
            try:
                yield place, one(row, number)
            except ValueError as e:
                problems.append(f"{place}: {e}")
                if len(problems) == MOST_PROBLEMS:
                    break
        refuse(problems)

    return read


def _otel(rows: Sequence[_Row], _settings: Settings) -> Iterator[_Session]:
    spans: list[otel.Span] = []
    for place, row in rows:
        try:
            spans += otel.spans_of(place, row)
        except (ValueError, KeyError, TypeError, AttributeError) as e:
            raise ValueError(f"{place} is not an OpenTelemetry span: {e}") from None
    return otel.sessions(spans)


_FORMATS = (
    Format(
        "opentelemetry",
        lambda row: "resourceSpans" in row or isinstance(row.get("spans"), list) or _is_span(row),
        _otel,
    ),
    Format("weka", lambda row: "requests" in row and "block_size" in row, _each(weka.session)),
    Format("swe-agent", lambda row: isinstance(row.get("trajectory"), list), _each(lambda r, _: chats.trajectory(r))),
    Format("aiperf-dag", dag.is_conversation, lambda rows, s: dag.sessions(rows, s.seed)),
    Format("mlperf-agentic", agentic.is_line, lambda rows, _: agentic.sessions(rows, {"temperature": 0, "seed": 42})),
    Format("sessions", lambda row: "turns" in row, _each(lambda r, _: own.session(r))),
    Format("sharegpt", lambda row: "conversations" in row, _each(lambda r, _: chats.session(r))),
    Format("mooncake", lambda row: bool(row.keys() & {"input_length", "text_input", "payload"}) or _is_aiperf(row), lambda rows, s: mooncake.sessions(rows, s.block_tokens)),
    Format("messages", lambda row: "messages" in row, _each(lambda r, _: chats.session(r))),
    Format("prompts", lambda row: bool(row.keys() & {"prompt", "input_ids", "body"}), _each(lambda r, _: own.prompt(r))),
)  # fmt: skip
FORMATS = ("auto", *(one.name for one in _FORMATS))
"""Values of the option `format`. The run's result uses the same names."""


def _is_span(row: Mapping[str, Any]) -> bool:
    return isinstance(row.get("attributes"), dict | list) and bool(
        row.keys() & {"trace_id", "traceId"}
    )


def _is_aiperf(row: Mapping[str, Any]) -> bool:
    """Returns whether a line with `messages` also contains other keys of AIPerf's Mooncake format."""
    return "messages" in row and bool(row.keys() & {"output_length", "timestamp", "session_id"})


def read_sessions(paths: Sequence[Path], wanted: str, settings: Settings) -> Found:
    """Reads several files as one. Raises a ConfigError that lists every problem. wanted: one of FORMATS."""
    rows = [row for path in paths for row in _objects(path)]
    if not rows:
        raise ConfigError(f"{paths[0]} has no sessions: nothing can be measured")
    first = rows[0][1]
    chosen = next(
        (
            one
            for one in _FORMATS
            if one.name == wanted or (wanted == "auto" and one.is_mine(first))
        ),
        None,
    )
    if chosen is None:
        raise ConfigError(
            f"{rows[0][0]} has no known format: write lines with `turns` (docs/datasets.md), or name the format with "
            f"--dataset-option format=NAME ({', '.join(FORMATS[1:])})"
        )
    try:
        sessions = [turns for _, turns in chosen.read(rows, settings) if turns]
    except ConfigError:
        raise
    except ValueError as e:
        raise ConfigError(str(e)) from None
    except WRONG_CONTENT as e:  # a value has a type that the format does not allow
        raise ConfigError(
            f"{paths[0]} cannot be read as {chosen.name} ({type_and_text(e)}): name its --dataset-option format"
        ) from e
    if not sessions:
        raise ConfigError(f"{paths[0]} has no sessions: nothing can be measured")
    return Found(chosen.name, sessions)


def _objects(path: Path) -> list[_Row]:
    """Returns the objects in a file. The file contains one object per line, a JSON list of objects, or a single object."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as e:
        raise unreadable(path, e) from e
    if path.suffix != ".jsonl" and (whole := _whole(text)) is not None:
        places = [f"{path}: entry {number}" for number in range(1, len(whole) + 1)]
        found: Iterable[tuple[str, Any]] = zip(places, whole, strict=True)
        return _checked(found)
    return _checked(_of_lines(path, text))


def _whole(text: str) -> list[Any] | None:
    """Returns the entries of a file that is a single JSON text; None for any other file."""
    try:
        content = parse_json(text)
    except (ValueError, RecursionError):
        return None
    return content if isinstance(content, list) else [content]


def _of_lines(path: Path, text: str) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip():
            try:
                yield f"{path}:{number}", parse_json(line)
            except json.JSONDecodeError:
                yield f"{path}:{number}", ValueError("it is not valid JSON")
            except (ValueError, RecursionError) as e:
                yield f"{path}:{number}", ValueError(str(e))


def _checked(found: Iterable[tuple[str, Any]]) -> list[_Row]:
    problems: list[str] = []
    rows: list[_Row] = []
    for place, content in found:
        if isinstance(content, dict):
            rows.append((place, content))
            continue
        text = str(content) if isinstance(content, ValueError) else "it is not a JSON object"
        problems.append(f"{place}: {text}")
        if len(problems) == MOST_PROBLEMS:
            break
    refuse(problems)
    return rows
