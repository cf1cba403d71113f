"""Reads the rows in a tree's LoadGen accuracy log, and finds rows that no run can produce."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.core.units import counted

CUT = b"\n\n...\n\n"
"""Text between the two ends of a truncated accuracy log."""

_ROW = re.compile(rb'\{\s*"seq_id"\s*:\s*(\d{1,18})\s*,\s*"qsl_idx"\s*:\s*(\d{1,18})\s*,')

_ANSWER = re.compile(rb'"qsl_idx"\s*:\s*(\d{1,18})\s*,\s*"data"\s*:\s*"([^"]*)"')
_LEAST_ROWS, _LEAST_SAMPLES = 20, 2_000
"""The end of a log is judged only if the end shows at least _LEAST_ROWS rows and the run has at least _LEAST_SAMPLES
samples. If queries overlap, fewer last rows might all belong to slow answers. In a run with fewer samples, the last
rows might all belong to one batch that stalled.
"""


class Row(NamedTuple):
    order: int
    """seq_id, the position of the sample in the order of issue."""
    sample: int
    """qsl_idx, the sample's index in the data set."""


def shown_rows(content: bytes) -> list[Row]:
    """Returns the complete rows that a whole or truncated log shows."""
    return [Row(int(m[1]), int(m[2])) for m in _ROW.finditer(content)]


def shown_answers(content: bytes) -> dict[int, bytes]:
    """Maps each sample in a whole or truncated log to its first answer.

    Raises a ValueError if an answer is not hexadecimal.
    """
    found: dict[int, bytes] = {}
    for part in content.split(CUT):  # each part may begin or end in the middle of an answer
        for match in _ANSWER.finditer(part):
            answer = bytes.fromhex(match[2].decode("ascii", "replace"))
            found.setdefault(int(match[1]), answer)
    return found


def has_whole_answer(content: bytes) -> bool:
    """Returns whether a truncated log shows at least one whole answer. If answers are large, the two ends may show only
    parts of answers.
    """
    try:
        return bool(shown_answers(content))
    except ValueError:
        return True


def whole_rows(content: bytes) -> list[Row] | None:
    """Returns the rows of a whole log; None if the content is not a complete list of answers."""
    try:
        rows = json.loads(content)
        found = [Row(row["seq_id"], row["qsl_idx"]) for row in rows]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not isinstance(rows, list) or not all(type(n) is int for row in found for n in row):
        return None
    return found


def impossible(rows: Sequence[Row], total: int, *, once: bool, padding: int = 0) -> Iterator[str]:
    """Yields a sentence for each contradiction between rows. total: number of samples in the data set.

    once: whether this is an accuracy run, in which each sample occurs once. padding: number of samples that the run may
    repeat.
    """
    orders = {row.order for row in rows}
    if len(orders) < len(rows):
        yield f"seq_id is repeated in {counted(len(rows) - len(orders), 'row')}"
    outside = [row for row in rows if not 0 <= row.sample < total]
    if outside:
        yield f"qsl_idx {outside[0].sample:,} is outside the data set of {total:,} samples"
    repeated = len(rows) - len({row.sample for row in rows})
    if once and repeated > padding:
        yield f"{counted(repeated, 'sample')} answered more than once"


def wrong_end(content: bytes, samples: int, scenario: str) -> str:
    """Returns why the end of a truncated log cannot be the end of a run with `samples` samples; '' if it can.

    Within a single query, samples may be answered in any order. If queries follow each other, the last rows must
    include a sample from the second half of the run.
    """
    head, _, tail = content.partition(CUT)
    first, last = shown_rows(head), shown_rows(tail)
    orders = {row.order for row in (*first, *last)}
    if not (first and last):
        return ""
    if max(orders) + 1 == len(orders):
        return f"both ends show all {len(orders):,} rows"
    highest = max(row.order for row in last)
    is_long = len(last) >= _LEAST_ROWS and samples >= _LEAST_SAMPLES
    in_order = scenario.endswith("Stream") or (scenario == "Server" and is_long)
    if in_order and highest < samples / 2:
        return f"its last rows end at sample {highest:,} of {samples:,}"
    return ""
