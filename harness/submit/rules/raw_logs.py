"""Verifies the untruncated accuracy logs by their hashes, ends and rows, and compares TEST01's answers with the
accuracy run's answers.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from harness.errors import one_line
from harness.loadgen.logs import AccuracyLogError
from harness.submit.rules.accuracy import (
    ACCURACY_LOG,
    ACCURACY_TEXT,
    dataset_samples,
    padding,
    stated_hash,
)
from harness.submit.rules.findings import Finding
from harness.submit.rules.rows import CUT, impossible, whole_rows
from harness.submit.rules.tree.submission import ACCURACY, Result
from harness.submit.rules.tree.tree import join
from harness.submit.rules.tree.verify import (
    ANSWER_DTYPES,
    TEST01,
    compare_answers,
    stated_counts,
)


def raw_logs(result: Result, raw: Path) -> Iterator[Finding]:
    """Checks a result's untruncated logs. raw: a folder that contains these logs at the same paths."""
    folders = [result.inside(ACCURACY)]
    if TEST01 in result.required_audits:
        folders.append(result.inside(TEST01, "accuracy"))
    for folder in folders:
        if result.tree.has(join(folder, ACCURACY_LOG)):
            yield from _log(result, folder, raw)
    if len(folders) == 2:
        yield from _answers(result, *(raw / join(folder, ACCURACY_LOG) for folder in folders))


def _log(result: Result, folder: str, raw: Path) -> Iterator[Finding]:
    path, stated = join(folder, ACCURACY_LOG), stated_hash(result, folder)
    try:
        content = (raw / path).read_bytes()
    except OSError as e:
        actual = f"--raw has no such log: {e.strerror}"
        yield Finding("accuracy-hash", path, actual, "the untruncated log at the same path")
        return
    digest = hashlib.sha256(content).hexdigest()
    if digest != stated:
        text_path = join(folder, ACCURACY_TEXT)
        yield Finding("accuracy-hash", text_path, f"hash={stated}", f"hash={digest}")
    head, cut, tail = (result.tree.content(path) or b"").partition(CUT)
    is_part = content.startswith(head) and content.endswith(tail) if cut else content == head
    if not is_part:
        yield Finding("accuracy-log", path, "rows that differ from the raw log", "its two ends")
    yield from _rows(result, path, content, once=folder == result.inside(ACCURACY))


def _rows(result: Result, path: str, content: bytes, *, once: bool) -> Iterator[Finding]:
    rows = whole_rows(content)
    if rows is None:
        actual = "the raw log is not a list of answers"
        yield Finding("accuracy-log", path, actual, "a list of answers in LoadGen's format")
        return
    total = dataset_samples(result)
    for fault in impossible(rows, total, once=once, padding=padding(result)):
        yield Finding("accuracy-log", path, f"in the raw log, {fault}", "rows of one run")
    issued = result.accuracy.number("effective_accuracy_sample_count") if result.accuracy else None
    samples = len({row.sample for row in rows})
    if once and issued is not None and samples != issued:
        actual = f"{samples:,} different samples in the raw log"
        yield Finding("accuracy-log", path, actual, f"{issued:,.0f}, as in the run's log")


def _answers(result: Result, accuracy: Path, test: Path) -> Iterator[Finding]:
    """Checks that the text about TEST01 agrees with the raw logs."""
    path = result.inside(TEST01, "verify_accuracy.txt")
    if not (accuracy.is_file() and test.is_file() and result.tree.has(path)):
        return  # because the check above or the layout check reports the missing file
    stated = stated_counts(result.tree.text(path))
    differences: dict[str, int] = {}
    for dtype in ANSWER_DTYPES:
        try:
            found = stated_counts(compare_answers(accuracy, test, dtype))
        except AccuracyLogError as e:
            actual, expected = one_line(e)[:300], "a list of answers in LoadGen's format"
            yield Finding("accuracy-log", result.inside(TEST01, "accuracy"), actual, expected)
            return
        other = {key: n for key, n in found.items() if stated.get(key, n) != n}
        if not other:
            return
        differences = differences or other
    key, count = next(iter(differences.items()))
    expected = f"{count}, from the raw logs"
    yield Finding("audit-failed", path, f"{key} = {stated[key]}", expected)
