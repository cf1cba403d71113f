"""Reads LoadGen's log files as data, without judging them."""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from harness.core.files import sha256
from harness.types import Answer

PROBE_ROWS = "probes.npz"
"""File that the measured process writes at the end of a run, with one row per answered or failed probe.

sent: number of probes that were due. alone_ns: probe times before the load. due_ns, sent_ns, first_ns (first token)
and completed_ns: wall-clock times. failed: 1 or 0.
"""
RAMP_ROWS = "ramp.npz"
"""File that the measured process writes with the steps of a ramp.

due_ns: due time of each query. For each step: first (position of the step's first query), rate, holds (whether the step
is a hold) and broken (whether the step was shown to miss an SLO).
"""
SAMPLE_FACTS = "samples.npz"
"""File that the measured process writes if the requests name several models or contain audio.

names: names of the models. index: dataset indices. For each index: model (a position in `names`) and media_ns (the
duration of the audio in the request).
"""

DETAIL = "mlperf_log_detail.txt"
SUMMARY = "mlperf_log_summary.txt"
ACCURACY = "mlperf_log_accuracy.json"
TRACE = "mlperf_log_trace.json"
ANSWERS = "answers.json"
"""File to which the harness's scheduler writes answers, in the format of LoadGen's accuracy log."""
FILES = (DETAIL, SUMMARY, ACCURACY, ANSWERS)
"""Files that contain a run's numbers and answers."""
EARLY_STOPPING = {
    "SingleStream": "early_stopping_latency_ss",
    "MultiStream": "early_stopping_latency_ms",
}
"""Maps LoadGen's name for a scenario to the key of the early-stopping estimate in ns."""
NETWORK_SUT = "Network SUT"
"""Beginning of `sut_name` in a run for MLPerf's Network division. The server names follow this text."""
SAME_MACHINE = "(same machine)"
"""Suffix for the name of a server that runs on LoadGen's machine. The Network division forbids such servers."""
RATE_DIGITS = 1e-5
"""Two rates count as equal if they differ by at most this share, because LoadGen writes only six digits."""
_PREFIX = ":::MLLOG "
_NOT_A_NUMBER = re.compile(r'("value": )-?(?:nan|inf)\b')
"""Matches a value that is not valid JSON. LoadGen writes the rate of a single query as -nan."""

_NUMBERS = re.compile(
    r"(result|effective)_\S*(_ns|_ms|_count|_qps|_percentile|_seed)|num_errors|early_stopping_latency_\w+"
)
_RATES = re.compile(r"result_\S*_per_sec(ond)?")
_ONCE = re.compile(
    r"requested_|effective_|result_|early_stopping|qsl_|sut_|loadgen_|num_errors|test_datetime"
)
_ONCE_TIMED = re.compile(r"power_|generated_")
"""Matches the keys that an accuracy run writes once per loaded sample set."""
_FLAGS = re.compile(r"\S*_met")
_LATENCIES = [f"result_{end}_latency_ns" for end in ("min", "mean", "max")] + [
    f"result_{percent}_percentile_latency_ns" for percent in ("50.00", "90.00", "99.00", "99.90")
]
_NEEDED = {
    "SingleStream": ["effective_target_latency_percentile"],
    "MultiStream": ["effective_target_latency_percentile"],
    "Server": [
        "effective_target_latency_percentile",
        "effective_target_latency_ns",
        "effective_target_qps",
        "result_overlatency_query_count",
        "result_completed_samples_per_sec",
    ],
    "Offline": ["result_samples_per_second"],
}
"""Keys that every performance log of the scenario contains in addition to `_LATENCIES`."""


@dataclass(slots=True)
class DetailLog:
    """Content of mlperf_log_detail.txt."""

    values: dict[str, Any] = field(default_factory=dict)
    """The first value of each key, as in MLCommons' parser. The exception is power_end, whose last value is kept,
    because an accuracy run logs power_begin and power_end once for each sample set that it loads.
    """
    errors: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    malformed_lines: int = 0
    complete: bool = False
    """Whether LoadGen wrote the log to its end, so that no line is malformed and every used key is present. A
    performance log ends with num_errors. An accuracy log has no results and ends with power_end.
    """
    repeated: int = 0
    """Number of runs in the file. More than one run means that logs were mixed."""
    contradicted: list[str] = field(default_factory=list)
    """Keys of settings and results with two different values, although LoadGen writes each key only once."""
    pid: int | None = None
    """Process ID of LoadGen; None if the first line has no process ID."""
    source: str = "LoadGen"
    """Name of the program that measured the values. The name is shown together with the values."""

    def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)


def read_detail(path: Path) -> DetailLog:
    """Reads the file. If the file is missing or cut off, returns an incomplete log. Never raises an error."""
    log = DetailLog()
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return log
    timed = False
    for line in lines:
        entry = _entry(line)
        if entry is None:
            log.malformed_lines += 1
            continue
        key, value, metadata = entry
        if log.pid is None and isinstance(metadata.get("pid"), int):
            log.pid = metadata["pid"]
        if log.values.setdefault(key, value) != value and (
            _ONCE.match(key) or (timed and _ONCE_TIMED.match(key))
        ):
            log.contradicted.append(key)
        timed |= (key, value) == ("effective_test_mode", "PerformanceOnly")
        if key == "power_end" and not timed:
            log.values[key] = value
        log.repeated += key == "loadgen_version"
        if metadata.get("is_error"):
            log.errors.append(f"{key}: {value}")
        elif metadata.get("is_warning"):
            log.warnings.append(f"{key}: {value}")
    log.complete = not log.malformed_lines and all(key in log.values for key in _ends(log))
    return log


def _ends(log: DetailLog) -> list[str]:
    """Returns the keys that a complete log must contain: LoadGen's last keys, and all keys that the harness uses."""
    if log.get("effective_test_mode") == "AccuracyOnly":
        return ["power_end"]
    needed = _NEEDED.get(str(log.get("effective_scenario")), [])
    return ["num_errors", "result_validity", "result_query_count", *_LATENCIES, *needed]


def _fits(key: str, value: object) -> bool:
    """Returns whether the value has the type that LoadGen writes. Only a rate may be None (see _NOT_A_NUMBER)."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    if _RATES.fullmatch(key):
        return number or value is None
    if _FLAGS.fullmatch(key):
        return isinstance(value, bool)
    return number or not _NUMBERS.fullmatch(key)


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # the integer may be too large for a float
        return False


def _entry(line: str) -> tuple[str, Any, dict[str, Any]] | None:
    if not line.startswith(_PREFIX):
        return None
    try:
        text = _NOT_A_NUMBER.sub(r"\1null", line[len(_PREFIX) :], count=1)
        entry = json.loads(text)
        key, value, metadata = entry["key"], entry["value"], entry["metadata"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if not isinstance(key, str) or not isinstance(metadata, dict) or not _fits(key, value):
        return None
    return key, value, metadata


def digests(folder: Path) -> dict[str, str]:
    """Returns the SHA-256 of each file that LoadGen or the harness's scheduler wrote to `folder`, by file name."""
    found = {}
    for name in FILES:
        path = folder / name
        if path.is_file():
            found[name] = sha256(path)
    return found


class AccuracyLogError(Exception):
    """Raised if mlperf_log_accuracy.json is missing, cut off or not written by LoadGen."""


_FIRST_LINE = b"[\n"


class LoggedAnswer(NamedTuple):
    """A row of LoadGen's accuracy log, with the sample's position in the run."""

    order: int
    """Position of the sample in the order of issue."""
    answer: Answer
    tokens: int | None = None
    """Number of tokens in the answer, as reported to LoadGen; None if the number was not reported."""
    first_token: bytes | None = None
    """First token, as reported to LoadGen before the answer; b'' if the token's ID was unknown; None if the token was
    not reported.
    """


def read_answers(path: Path) -> Iterator[Answer]:
    """Yields every answer in file order. Dataset indices may repeat, because MultiStream pads its last query."""
    for row in read_logged_answers(path):
        yield row.answer


def read_logged_answers(path: Path) -> Iterator[LoggedAnswer]:
    """Yields every row in file order. Holds only one row in memory if the file has one row per line, as in LoadGen."""
    try:
        with path.open("rb") as file:
            if file.readline() == _FIRST_LINE:
                yield from _by_line(file, str(path))
                return
            file.seek(0)
            content = file.read()
    except OSError as e:
        raise AccuracyLogError(f"{path} cannot be read: {e.strerror}") from e
    yield from logged_answers(content, str(path))


def logged_answers(content: bytes, path: str) -> Iterator[LoggedAnswer]:
    """Yields every row of a log that was read from `path`, in file order."""
    rows = _parsed(content, path)
    if not isinstance(rows, list):
        raise AccuracyLogError(f"{path} is not a list of answers")
    for row in rows:
        yield _logged(row, path)


def _by_line(file: BinaryIO, path: str) -> Iterator[LoggedAnswer]:
    """Yields the rows after the first line. A comma follows each row except the last row."""
    has_rows, has_next, number = False, True, 1
    for number, line in enumerate(file, 2):
        text = line.strip()
        if not text:
            continue
        if text == b"]":
            if (has_rows and has_next) or file.read().strip():
                break
            return
        if not has_next:
            break
        has_rows, has_next = True, text.endswith(b",")
        yield _logged(_parsed(text[:-1] if has_next else text, path, number), path)
    raise AccuracyLogError(
        f"{path} is not the JSON that LoadGen writes: it breaks off at line {number}"
    )


def _parsed(content: bytes, path: str, line: int | None = None) -> Any:
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as e:
        where = f"in line {line}, " if line else ""
        raise AccuracyLogError(f"{path} is not the JSON that LoadGen writes: {where}{e}") from None


def _logged(row: Any, path: str) -> LoggedAnswer:
    try:
        answer = Answer(int(row["qsl_idx"]), bytes.fromhex(row["data"]))
        tokens, first = row.get("token_count"), row.get("token_data")
        return LoggedAnswer(
            int(row["seq_id"]),
            answer,
            None if tokens is None else int(tokens),
            None if first is None else bytes.fromhex(first),
        )
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError):
        raise AccuracyLogError(f"{path} has a row that is not an answer: {row!r:.80}") from None
