"""Reads recorded language-model traffic: each request's time and number of tokens.

Formats: Mooncake's JSONL (timestamp in ms, input_length, output_length, hash_ids); BurstGPT's tables (Timestamp in s,
Request tokens, Response tokens) and the tables of Azure's LLM traces (TIMESTAMP as a date, ContextTokens,
GeneratedTokens).
Sources: kvcache-ai/Mooncake, HPMLL/BurstGPT, Azure/AzurePublicDataset.
"""

import csv
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.core.files import parse_json
from harness.core.units import NS_PER_MS, NS_PER_S, NS_PER_US
from harness.errors import MOST_PROBLEMS, ConfigError, refuse
from harness.types import Array

MOST_REQUESTS = 10_000_000
MOST_TOKENS = 10_000_000
"""Maximum number of tokens in a prompt or an answer. A larger number counts as an error in the file."""

LARGEST_BYTES = 1 << 30
_MOST_LINE_CHARACTERS = 1 << 20
_LATEST_NS = 2**62
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Trace(NamedTuple):
    """The recorded requests in the order of their times. Requests with equal times keep their order in the file."""

    format: str
    times_ns: Array
    """(n,) int64, in ns, ascending. Only the differences between the times matter."""
    input_tokens: Array
    """(n,) int64, at least 1."""
    output_tokens: Array
    """(n,) int64, at least 1."""
    blocks: tuple[tuple[int, ...], ...]
    """Mooncake's block IDs for each prompt. Equal IDs mean equal tokens. () if the file has no block IDs."""
    lines: Array
    """(n,) line numbers in the file, starting with 1."""
    left_out: int
    """Number of requests that were left out because they failed during the recording and lack a prompt or an answer.
    """


class _Request(NamedTuple):
    time_ns: int
    input_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


class _Table(NamedTuple):
    """A table format and the names of its columns."""

    format: str
    time: str
    input: str
    output: str
    to_ns: Callable[[str], int]


def is_trace(begin: str) -> bool:
    """Returns whether a file is a trace in one of these formats. begin: the beginning of the file."""
    first = next(iter(begin.removeprefix("\ufeff").lstrip().splitlines()), "")
    return first.startswith("{") or _table_of(next(csv.reader([first]), [])) is not None


def read_trace(path: Path) -> Trace:
    """Reads a trace from a file. Raises a ConfigError with one line per problem."""
    try:
        if path.stat().st_size > LARGEST_BYTES:
            raise ConfigError(f"{path} is larger than {LARGEST_BYTES >> 20} MiB: shorten it")
        with path.open(encoding="utf-8-sig", newline="") as file:
            return parse_trace(path, file)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e


def parse_trace(path: Path, lines: Iterable[str]) -> Trace:
    """Parses the lines of a trace. path: the file's path, for messages."""
    try:
        name, rows = _rows(path, iter(lines))
        requests, problems, left_out = _collected(path, rows)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text") from None
    except csv.Error as e:
        raise ConfigError(f"{path} is not a table of comma-separated values: {e}") from None
    refuse(problems)
    if not requests:
        raise ConfigError(
            f"{path} has no request with a prompt and an answer: nothing can be measured"
        )
    numbers = np.array(
        [(r.time_ns, r.input_tokens, r.output_tokens, n) for n, r in requests], np.int64
    )
    order = np.argsort(numbers[:, 0], kind="stable")
    times, inputs, outputs, places = numbers[order].T
    has_blocks = any(r.blocks for _, r in requests)
    blocks = tuple(requests[i][1].blocks for i in order.tolist()) if has_blocks else ()
    return Trace(name, times, inputs, outputs, blocks, places, left_out)


def _collected(
    path: Path, rows: Iterable[tuple[int, _Request | ValueError]]
) -> tuple[list[tuple[int, _Request]], list[str], int]:
    """Returns the requests with their line numbers, the problems, and the number of requests that failed during the
    recording.
    """
    requests: list[tuple[int, _Request]] = []
    problems: list[str] = []
    left_out = 0
    for number, row in rows:
        if isinstance(row, ValueError):
            problems.append(f"{path}:{number}: {row}")
            if len(problems) == MOST_PROBLEMS:
                break
        elif row.input_tokens and row.output_tokens:
            requests.append((number, row))
            if len(requests) > MOST_REQUESTS:
                raise ConfigError(f"{path} has more than {MOST_REQUESTS:,} requests: shorten it")
        else:
            left_out += 1
    return requests, problems, left_out


def _rows(
    path: Path, lines: Iterator[str]
) -> tuple[str, Iterator[tuple[int, _Request | ValueError]]]:
    """Returns the name of the format, and each request with its line number."""
    first = next(lines, "")
    if first.lstrip().startswith("{"):
        return "Mooncake", _json_rows(first, lines)
    heading = [name.strip() for name in next(csv.reader([first]), [])]
    table = _table_of(heading)
    if table is None:
        known = "; ".join(f"{t.time}, {t.input}, {t.output} ({t.format})" for t in _TABLES)
        raise ConfigError(
            f"{path} is not a trace: its lines are not JSON objects, and its first line does not name the "
            f"columns {known}"
        )
    places = (heading.index(table.time), heading.index(table.input), heading.index(table.output))
    return table.format, _table_rows(table, places, len(heading), lines)


def _json_rows(first: str, lines: Iterator[str]) -> Iterator[tuple[int, _Request | ValueError]]:
    for number, line in enumerate(_chained(first, lines), 1):
        if line.strip():
            try:
                yield number, _from_json(line)
            except ValueError as e:
                yield number, e


def _chained(first: str, lines: Iterator[str]) -> Iterator[str]:
    yield first
    yield from lines


def _from_json(line: str) -> _Request:
    if len(line) > _MOST_LINE_CHARACTERS:
        raise ValueError(f"the line is longer than {_MOST_LINE_CHARACTERS:,} characters")
    try:
        row = parse_json(line)
    except (json.JSONDecodeError, RecursionError):
        raise ValueError("it is not valid JSON") from None
    if not isinstance(row, Mapping):
        raise ValueError("it is not a JSON object")
    time_ns = _milliseconds_ns(row.get("timestamp"))
    blocks = row.get("hash_ids") or []
    if not isinstance(blocks, list) or any(type(b) is not int or b < 0 for b in blocks):
        raise ValueError("hash_ids must be a list of whole numbers")
    counts = [_count(row.get(key), key) for key in ("input_length", "output_length")]
    return _Request(time_ns, counts[0], counts[1], tuple(blocks))


def _table_rows(
    table: _Table, places: tuple[int, int, int], width: int, lines: Iterator[str]
) -> Iterator[tuple[int, _Request | ValueError]]:
    reader = csv.reader(lines)
    for cells in reader:
        if not any(cells):
            continue
        number = reader.line_num + 1
        if len(cells) != width:
            yield (
                number,
                ValueError(
                    f"it has {len(cells)} columns, but the header has {width}: write decimals with a point"
                ),
            )
            continue
        time, prompt, answer = (cells[place].strip() for place in places)
        try:
            counts = (_number(prompt, table.input), _number(answer, table.output))
            yield number, _Request(table.to_ns(time), *counts)
        except ValueError as e:
            yield number, e


def _number(text: str, column: str) -> int:
    if not re.fullmatch(r"[0-9]{1,12}(\.0)?", text):
        raise ValueError(f"{column} is {text[:40]!r}, but must be a number of tokens")
    return _count(int(text.partition(".")[0]), column)


def _count(value: object, name: str) -> int:
    if type(value) is not int or not 0 <= value <= MOST_TOKENS:
        raise ValueError(
            f"{name} is {value!r:.40}, but must be a number of tokens, at most {MOST_TOKENS:,}"
        )
    return value


def _milliseconds_ns(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"timestamp is {value!r:.40}, but must be a time in milliseconds")
    if not 0 <= value * NS_PER_MS < _LATEST_NS:
        raise ValueError(f"timestamp is {value!r:.40}, which is not a time from 1970 to 2116")
    return round(value * NS_PER_MS)


def _seconds_ns(text: str) -> int:
    try:
        plain = text.isascii() and "_" not in text and len(text) < 40
        seconds = Decimal(text) if plain else Decimal("NaN")
    except InvalidOperation:
        seconds = Decimal("NaN")
    if not seconds.is_finite() or seconds < 0 or seconds * NS_PER_S > _LATEST_NS:
        raise ValueError(f"{text[:40]!r} is not a time in seconds")
    return int(seconds * NS_PER_S)


def _date_ns(text: str) -> int:
    """Parses a date with microsecond precision; a date without a time zone is taken as UTC."""
    try:
        date = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a date and time") from None
    since = (date if date.tzinfo else date.replace(tzinfo=UTC)) - _EPOCH
    ns = since // timedelta(microseconds=1) * NS_PER_US
    if not 0 <= ns <= _LATEST_NS:
        raise ValueError(f"{text[:40]!r} is not a date from 1970 to 2116")
    return ns


_TABLES = (
    _Table("BurstGPT", "Timestamp", "Request tokens", "Response tokens", _seconds_ns),
    _Table("Azure", "TIMESTAMP", "ContextTokens", "GeneratedTokens", _date_ns),
)


def _table_of(heading: Iterable[str]) -> _Table | None:
    names = {name.strip() for name in heading}
    return next((t for t in _TABLES if {t.time, t.input, t.output} <= names), None)
