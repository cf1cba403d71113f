"""Reads the file of --arrivals, which contains the arrival time of each query.

Each line contains the time of one arrival, in seconds or with a unit. Times are in ascending order. If any line also
contains a comma and the sample's dataset index, every line must. Only the differences between times matter, because the
first query arrives immediately. Empty lines, lines that begin with # and a heading `arrival[,sample]` are skipped. A
file with two columns needs the heading if every line could also be one time with a decimal comma. A language-model
trace (harness/core/formats/traces.py) is accepted, too. Request i then uses sample i.
"""

import hashlib
import re
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal, InvalidOperation
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np

from harness.core.formats.traces import is_trace, parse_trace
from harness.core.units import NS_PER_S, NS_PER_UNIT, counted, show_bytes
from harness.errors import ConfigError
from harness.loadgen import schedule
from harness.loadgen.plan import LoadPlan
from harness.loadgen.scenario import Load
from harness.types import Array

MOST_ARRIVALS = 10_000_000
LARGEST_BYTES = 256 << 20
LONGEST_NS = 7 * 24 * 3600 * NS_PER_S
"""The first and the last arrival may be at most this far apart."""

_LATEST_NS = 2**62
"""A time in a line may be at most this many ns. Unix time reaches this limit in 2116."""

_LONGEST_TEXT = 64
"""A time may be at most this many characters long."""

_LONGEST_HEADING = 4096
"""The file's format (arrivals or a trace) is recognised from this many bytes at the start of the file."""

_SHOWN = 3
"""At most this many problems of one kind are shown."""

_HEADING = re.compile(r"arrival(,\s*sample)?")
_WORD = re.compile(r"[^\W\d]{2}")
"""Matches two letters in a row, which no number contains, not even with an exponent."""
_WHOLE = re.compile(r"[0-9]+|[1-9][0-9]{0,2}\.[0-9]{3}")
"""Matches text before a decimal comma: a whole number, with or without a point as the thousands separator."""
_SECONDS = re.compile(r"([0-9]+)(?:\.([0-9]{0,9}))?")
_WITH_UNIT = re.compile(r"([^a-z]+|[0-9.]+[eE][-+]?[0-9]+)\s*(ns|us|ms|s|min|h)?")
_ADVICE = "write seconds or a time with its unit, e.g. 0.25 or 250ms"
_COMMA = "if the comma is a decimal comma, write a point"


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The arrivals in a user's file."""

    path: Path
    sha256: str
    """Digest of the file."""
    after_ns: Array
    """(n,) int64 times in ns after the first arrival, ascending."""
    samples: Array | None
    """(n,) dataset indices; None if the file has no dataset indices."""
    lines: Array
    """(n,) line numbers in the file, from 1."""

    def load(self, queries: int | None) -> Load:
        """Returns the size of the run. queries: value of --queries, which limits the run to the first arrivals."""
        count = queries or len(self.after_ns)
        if count > len(self.after_ns):
            raise ConfigError(
                f"--queries {count:,} is too high: {self.path} has only {counted(len(self.after_ns), 'arrival')}"
            )
        return Load(count, float(self.after_ns[count - 1]) / NS_PER_S)

    def check_samples(self, queries: int, held: int) -> None:
        """Checks that the first `queries` arrivals use only the first `held` samples.

        Raises a ConfigError that lists one line per problem.
        """
        if self.samples is None:
            return
        beyond = np.flatnonzero(self.samples[:queries] >= held)
        problems = [
            f"line {self.lines[at]}: sample {self.samples[at]} is not in memory: the performance run holds "
            f"samples 0 to {held - 1} (--performance-count)"
            for at in beyond[:_SHOWN].tolist()
        ]
        if problems:
            raise ConfigError(_message(self.path, problems, len(beyond)))

    def put(self, plan: LoadPlan, outdir: Path) -> LoadPlan:
        """Writes the schedule to `outdir`, where every process of the run reads it. Returns the plan with the path of
        the schedule.
        """
        count = plan.query_count
        self.check_samples(count, plan.performance_count)
        samples = self.samples[:count] if self.samples is not None else None
        path = outdir.absolute() / schedule.SCHEDULE
        schedule.store(path, self.after_ns[:count], samples)
        return replace(plan, schedule=str(path), arrivals_sha256=self.sha256)


def read(path: Path, expected_sha256: str | None = None) -> Arrivals:
    """Reads the file. If the file cannot be replayed, raises a ConfigError with one line per problem.

    expected_sha256: digest of the file when config.yaml was written; None if unknown.
    """
    content = _content(path)
    sha256 = hashlib.sha256(content).hexdigest()
    if expected_sha256 not in (None, sha256):
        raise ConfigError(
            f"{path} has changed: its digest is {sha256[:12]}…, but this configuration was written for "
            f"{str(expected_sha256)[:12]}…. Restore the file, or remove arrivals_sha256 from the configuration"
        )
    # decodes the file line by line
    lines = TextIOWrapper(BytesIO(content), "utf-8-sig", newline="\n")
    if is_trace(content[:_LONGEST_HEADING].decode("utf-8-sig", "replace")):
        return _of_trace(path, sha256, lines)
    try:
        after_ns, samples, numbers = _parse(path, lines)
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text: {_ADVICE}, one arrival per line") from None
    return Arrivals(path, sha256, after_ns, samples, numbers)


def _of_trace(path: Path, sha256: str, lines: Iterable[str]) -> Arrivals:
    trace = parse_trace(path, lines)
    # A trace is already sorted, so this check only finds a period that is too long.
    _check_order(path, trace.times_ns, trace.lines.tolist())
    after_ns = trace.times_ns - trace.times_ns[0]
    samples = np.arange(len(after_ns), dtype=np.int64)
    return Arrivals(path, sha256, after_ns, samples, trace.lines.astype(np.int32))


def _content(path: Path) -> bytes:
    try:
        if not path.is_file():
            problem = "is not a file" if path.exists() else "does not exist"
            raise ConfigError(
                f"--arrivals {path} {problem}: pass a file with one arrival time per line"
            )
        size = path.stat().st_size
        if size > LARGEST_BYTES:
            raise ConfigError(
                f"{path} has {show_bytes(size)}, but at most {show_bytes(LARGEST_BYTES)} are allowed: shorten it"
            )
        return path.read_bytes()
    except OSError as e:
        raise ConfigError(f"--arrivals {path} cannot be read: {e.strerror}") from e


class _Columns:
    """Collects the columns of the file and the problems in its lines."""

    def __init__(self) -> None:
        self.times_ns, self.samples, self.lines = array("q"), array("q"), array("i")
        # The problems that are shown, which come from the first faulty lines.
        self.problems: list[str] = []
        self.faulty = 0  # number of all faulty lines
        self._columns = 0
        self._named = False
        self._may_be_decimals = True
        self._first = ("", "")

    def head(self, number: int, line: str) -> bool:
        """Returns whether the first line is a heading. A heading with other names counts as a faulty line."""
        if _HEADING.fullmatch(line):
            self._columns, self._named = line.count(",") + 1, True
            return True
        if _WORD.match(line.strip("\"'")):
            self._refuse(
                number,
                f"the heading {line[:40]!r} is not known: write arrival or arrival,sample, and times "
                "in seconds or with their unit, e.g. 250ms",
            )
            return True
        return False

    def add(self, number: int, line: str) -> None:
        """Adds a line. number: number of the line in the file, from 1."""
        cells = line.split(",")
        self._columns = self._columns or len(cells)
        try:
            if len(cells) != self._columns or len(cells) > 2:
                expected = min(self._columns, 2)
                hint = f"; {_COMMA}" if len(cells) > expected else ""
                columns = counted(len(cells), "column")
                raise ValueError(
                    f"has {columns} instead of {expected}: write arrival[,sample]{hint}"
                )
            if ";" in line or "\t" in line:
                raise ValueError(
                    f"{line[:40]!r} has a semicolon or a tab: separate the columns with commas, and write a point "
                    "before decimals"
                )
            time_ns = parse_time_ns(cells[0].strip())
            if len(cells) == 2:
                self._first = self._first if self.lines else (cells[0].strip(), cells[1].strip())
                self._may_be_decimals &= _WHOLE.fullmatch(cells[0].strip()) is not None
                self.samples.append(_index(cells[1].strip()))
            self.times_ns.append(time_ns)
            self.lines.append(number)
        except ValueError as e:
            self._refuse(number, str(e))

    def _refuse(self, number: int, problem: str) -> None:
        self.faulty += 1
        if self.faulty <= _SHOWN:
            self.problems.append(f"line {number}: {problem}")

    def refuse_decimal_commas(self) -> None:
        """Marks the first line as faulty if every line could be one number with a decimal comma."""
        if self.samples and self._may_be_decimals and not self._named and not self.faulty:
            time, sample = self._first
            self._refuse(
                self.lines[0],
                f"{time},{sample} may be the time {time} s and sample {sample}, or one time with a "
                f"decimal comma: add the heading arrival,sample, or write {time.replace('.', '')}.{sample}",
            )


def _parse(path: Path, lines: Iterable[str]) -> tuple[Array, Array | None, Array]:
    """Returns the columns after_ns, samples and lines of Arrivals."""
    columns = _Columns()
    heading = True  # whether the next line may be a heading
    for number, line in enumerate(lines, 1):
        line = line.strip()  # noqa: PLW2901 - only removes white space
        if not line or line.startswith("#"):
            continue
        if not (heading and columns.head(number, line)):
            columns.add(number, line)
        heading = False
        if len(columns.lines) + columns.faulty > MOST_ARRIVALS:
            raise ConfigError(f"{path} has more than {MOST_ARRIVALS:,} arrivals: shorten it")
    columns.refuse_decimal_commas()
    times_ns = np.array(columns.times_ns, np.int64)
    if columns.faulty:
        raise ConfigError(_message(path, columns.problems, columns.faulty))
    _check_order(path, times_ns, columns.lines)
    if not len(times_ns):
        raise ConfigError(f"{path} has no arrivals: {_ADVICE}, one per line")
    samples = np.array(columns.samples, np.int64) if len(columns.samples) else None
    return times_ns - times_ns[0], samples, np.array(columns.lines, np.int32)


def _check_order(path: Path, times_ns: Array, lines: Sequence[int]) -> None:
    back = np.flatnonzero(np.diff(times_ns) < 0)
    problems = [
        f"line {lines[at + 1]} is earlier than line {lines[at]}: sort the file by time"
        for at in back[:_SHOWN].tolist()
    ]
    if problems:
        raise ConfigError(_message(path, problems, len(back)))
    if len(times_ns) and int(times_ns[-1] - times_ns[0]) > LONGEST_NS:
        problem = (
            f"line {lines[-1]} is more than seven days after the first arrival: shorten the file"
        )
        raise ConfigError(_message(path, [problem], 1))


def _message(path: Path, shown: list[str], count: int) -> str:
    more = count - len(shown)
    rest = [f"{path}: {more:,} more lines like these"] if more else []
    return "\n".join([f"{path} {problem}" for problem in shown] + rest)


def parse_time_ns(text: str) -> int:
    """Parses a time and rounds it to ns. Examples: '0.25' (seconds), '250ms', '1732190400.5', '2.5e-1'."""
    plain = _SECONDS.fullmatch(text)
    if plain is not None:
        ns = int(plain[1][:30]) * NS_PER_S + int((plain[2] or "").ljust(9, "0"))
    else:
        ns = _rounded_ns(text)
    if ns > _LATEST_NS:
        raise ValueError(f"{text[:40]!r} is too large: {_ADVICE}")
    return ns


def _rounded_ns(text: str) -> int:
    match = _WITH_UNIT.fullmatch(text) if len(text) <= _LONGEST_TEXT else None
    try:
        if match is None or not text.isascii() or "_" in text:
            raise InvalidOperation
        number = Decimal(match[1].strip())
        if not number.is_finite():
            raise InvalidOperation
    except InvalidOperation:
        raise ValueError(f"{text[:40]!r} is not a time: {_ADVICE}") from None
    if number < 0:
        raise ValueError(f"{text[:40]!r} is negative: times count up from 0")
    if number.adjusted() > 30:  # as an int, 1e999999999 would exhaust the memory
        return _LATEST_NS + 1
    return int((number * NS_PER_UNIT[match[2] or "s"]).to_integral_value())


def _index(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,10}", text):
        raise ValueError(
            f"{text[:40]!r} is not a sample: write its dataset index, from 0; {_COMMA}"
        )
    if len(text) > 1 and text.startswith("0"):
        raise ValueError(f"{text!r} is not a sample: a dataset index has no leading zero; {_COMMA}")
    return int(text)
