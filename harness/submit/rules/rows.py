"""Reads the rows of LoadGen's accuracy log that a tree shows, and finds rows that no run writes."""

import json
import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from harness.core.units import counted

CUT = b"\n\n...\n\n"
"""Stands between the two ends of a truncated accuracy log."""

_ROW = re.compile(rb'\{\s*"seq_id"\s*:\s*(\d{1,18})\s*,\s*"qsl_idx"\s*:\s*(\d{1,18})\s*,')

_ANSWER = re.compile(rb'"qsl_idx"\s*:\s*(\d{1,18})\s*,\s*"data"\s*:\s*"([^"]*)"')
_LEAST_ROWS = 20
"""Last rows of which all may belong to slow answers where queries overlap."""


class Row(NamedTuple):
    order: int
    """seq_id: issue order of the sample."""
    sample: int
    """qsl_idx: index in the data set."""


def shown_rows(content: bytes) -> list[Row]:
    """Rows of a whole or truncated log whose beginning is shown."""
    return [Row(int(m[1]), int(m[2])) for m in _ROW.finditer(content)]


def shown_answers(content: bytes) -> dict[int, bytes]:
    """Sample -> its first answer, of a whole or truncated log whose beginning is shown. A ValueError where an
    answer is not hexadecimal.
    """
    found: dict[int, bytes] = {}
    for part in content.split(CUT):  # an answer may be cut within
        for match in _ANSWER.finditer(part):
            answer = bytes.fromhex(match[2].decode("ascii", "replace"))
            found.setdefault(int(match[1]), answer)
    return found


def whole_rows(content: bytes) -> list[Row] | None:
    """Rows of a whole log; None where the content is not a list of answers."""
    try:
        rows = json.loads(content)
        found = [Row(row["seq_id"], row["qsl_idx"]) for row in rows]
    except (ValueError, RecursionError, KeyError, TypeError):
        return None
    if not isinstance(rows, list) or not all(type(n) is int for row in found for n in row):
        return None
    return found


def impossible(rows: Sequence[Row], total: int, *, once: bool, padding: int = 0) -> Iterator[str]:
    """Sentences about rows that contradict each other. total: samples in the data set.

    once: an accuracy run, which answers each sample once. padding: samples that it may repeat.
    """
    orders = {row.order for row in rows}
    if len(orders) < len(rows):
        yield f"seq_id stands in {counted(len(rows) - len(orders), 'row')} more than once"
    outside = [row for row in rows if not 0 <= row.sample < total]
    if outside:
        yield f"qsl_idx {outside[0].sample:,} in a data set of {total:,} samples"
    repeated = len(rows) - len({row.sample for row in rows})
    if once and repeated > padding:
        yield f"{counted(repeated, 'sample')} answered more than once"


def wrong_end(content: bytes, samples: int, scenario: str) -> str:
    """Why the tail of a truncated log is not the end of a run of `samples` samples; '' where it may be.

    Only a single query may be answered in any order; one query after another, the second half of the rows
    cannot lack the last samples.
    """
    head, _, tail = content.partition(CUT)
    first, last = shown_rows(head), shown_rows(tail)
    orders = {row.order for row in (*first, *last)}
    if not (first and last):
        return ""
    if max(orders) + 1 == len(orders):
        return f"both ends show all {len(orders):,} rows"
    highest = max(row.order for row in last)
    in_order = scenario.endswith("Stream") or (scenario == "Server" and len(last) >= _LEAST_ROWS)
    if in_order and highest < samples / 2:
        return f"its last rows end at sample {highest:,} of {samples:,}"
    return ""
