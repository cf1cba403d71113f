"""Checks the accuracy run: its log, its score, and the truncated log with its hash."""

import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.submit.rules.findings import Finding
from harness.submit.rules.run import ACCURACY_MODE, any_run
from harness.submit.rules.tree.rounds import Benchmark, Bound
from harness.submit.rules.tree.submission import ACCURACY, Result, RunLog
from harness.submit.rules.tree.tree import join

ACCURACY_LOG, ACCURACY_TEXT = "mlperf_log_accuracy.json", "accuracy.txt"
CUT = b"\n\n...\n\n"
"""Stands between the two ends of a truncated accuracy log."""

_HASH = re.compile(r"^hash=([\w\d]+)$", re.MULTILINE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COUNTS = re.compile(r"^accuracy=([\d.]+)%, good=(\d+), total=(\d+)", re.MULTILINE)
_SCORE_SLACK = 0.001
"""In percent: accuracy=...% is written with three digits."""


def accuracy(result: Result, run: RunLog | None, raw: Path | None) -> Iterator[Finding]:
    """raw: a folder with the untruncated logs at the same paths; None skips that comparison."""
    benchmark = result.benchmark
    if run is not None:
        yield from any_run(result, run, ACCURACY_MODE)
        if benchmark is not None and result.scenario is not None:
            yield from _counts(run, benchmark.samples_in(result.scenario))
    if benchmark is None or result.scenario is None:
        return
    yield from _score(result, benchmark.targets_in(result.scenario), benchmark)
    log = result.inside(ACCURACY, ACCURACY_LOG)
    rows = _rows(result.tree.content(log) or b"")  # None where the log is truncated or missing
    samples = len({row["qsl_idx"] for row in rows}) if rows else None
    expected = benchmark.samples_in(result.scenario)
    if samples is not None and samples != expected:
        actual = f"{samples:,} different samples were answered"
        yield Finding("dataset-size", log, actual, f"{expected:,}")
    yield from truncated(result, result.inside(ACCURACY), raw)
    videos = {n.split(".")[0] for n in result.tree.files(result.inside(ACCURACY, "videos"))}
    for number in benchmark.accuracy_videos:
        if str(number) not in videos:
            path = result.inside(ACCURACY, "videos", f"{number}.mp4")
            yield Finding("missing-file", path, "no such file", "this file")


def _counts(run: RunLog, expected: int) -> Iterator[Finding]:
    file = run.file
    keys = ("effective_accuracy_sample_count", "qsl_reported_total_count")
    answered, total = (run.number(key) for key in keys)
    for key, count in zip(keys, (answered, total), strict=True):
        if count != expected and not (count is None and key == keys[0]):
            yield Finding("dataset-size", file, f"{key}: {run.text(key)}", f"{expected}")
    if answered is not None and total is not None and answered > total:
        actual = f"{answered:,.0f} samples issued, but the data set has {total:,.0f}"
        yield Finding("sample-override", file, actual, "samples that the data set has")


def _score(result: Result, targets: Mapping[str, Bound], benchmark: Benchmark) -> Iterator[Finding]:
    file = result.inside(ACCURACY, ACCURACY_TEXT)
    if not result.tree.has(file):
        return  # the layout reports the missing file
    text = result.tree.text(file)
    scores = result.round.scores(text, {**targets, **benchmark.limits})
    for metric, target in targets.items():
        values = scores.get(metric, [])
        if not values or not all(math.isfinite(value) for value in values):
            expected = f"a line that matches {result.round.patterns[metric]}"
            yield Finding("accuracy-text", file, f"no {metric}", expected)
        elif not result.submitter.is_open and min(values) < target.value:
            expected = f"{metric} of at least {target.value:.10g}"
            yield Finding("accuracy-target", file, f"{min(values):.10g}", expected)
    if not result.submitter.is_open:
        for metric, limit in benchmark.limits.items():
            most = max(scores.get(metric, [-math.inf]))
            if most > limit.value:
                expected = f"{metric} of at most {limit.value:.10g}"
                yield Finding("accuracy-target", file, f"{most:.10g}", expected)
    yield from _consistent(file, text, benchmark.samples_in(str(result.scenario)))


def _consistent(file: str, text: str, samples: int) -> Iterator[Finding]:
    """Checks a line such as accuracy=76.46%, good=38230, total=50000: all samples count, and the numbers agree."""
    match = _COUNTS.search(text)
    if match is None:
        return
    good, total = int(match[2][:18]), int(match[3][:18])
    if total != samples:
        yield Finding("dataset-size", file, f"total={total}", f"total={samples}")
    percent = 100.0 * good / total if total else math.nan
    stated = match[1]
    if (
        stated.count(".") <= 1
        and not abs(float(stated.strip(".") or "nan") - percent) <= _SCORE_SLACK
    ):
        yield Finding("accuracy-text", file, f"accuracy={stated}%", f"{percent:.3f}% of {total}")


def truncated(result: Result, folder: str, raw: Path | None) -> Iterator[Finding]:
    """Checks the log in `folder`: its size, its format, and the hash beside it."""
    tree, path = result.tree, join(folder, ACCURACY_LOG)
    text_path = join(folder, ACCURACY_TEXT)
    if not tree.has(path):
        return
    limit = result.round.largest_accuracy_log_bytes
    if tree.size_bytes(path) > limit:
        actual = f"{tree.size_bytes(path):,} bytes"
        yield Finding("accuracy-log", path, actual, f"at most {limit:,}, after truncation")
        return
    content = tree.content(path) or b""
    problem = _log_problem(content)
    if problem:
        yield Finding("accuracy-log", path, problem, "a list of answers in LoadGen's format")
    if not tree.has(text_path):
        return
    match = _HASH.search(tree.text(text_path))
    stated = match[1] if match else ""
    if not _SHA256.fullmatch(stated):
        actual = f"hash={stated}" if stated else "no line that begins with hash="
        yield Finding("accuracy-hash", text_path, actual[:200], "the raw log's SHA-256")
        return
    whole = hashlib.sha256(content).hexdigest() if CUT not in content and not problem else None
    if raw is not None:
        try:
            with (raw / path).open("rb") as log:
                whole = hashlib.file_digest(log, "sha256").hexdigest()
        except OSError as e:
            actual = f"--raw has no such log: {e.strerror}"
            yield Finding("accuracy-hash", path, actual, "the untruncated log at the same path")
    if whole is not None and whole != stated:
        yield Finding("accuracy-hash", text_path, f"hash={stated}", f"hash={whole}")


def _log_problem(content: bytes) -> str:
    """Returns why the content is not an accuracy log with answers, whole or truncated; '' where it is."""
    if CUT not in content:
        rows = _rows(content)
        return "" if rows else "no answer" if rows == [] else "not a list of answers"
    head, _, tail = content.partition(CUT)
    if not re.match(rb'\[\s*\{\s*"seq_id"', head) or not tail.rstrip().endswith(b"]"):
        return "the two ends are not those of a list of answers"
    return "" if b'"qsl_idx"' in head else "no answer"


def _rows(content: bytes) -> list[dict[str, Any]] | None:
    try:
        rows = json.loads(content)
    except (ValueError, RecursionError):
        return None
    if not isinstance(rows, list) or not all(
        isinstance(r, dict) and isinstance(r.get("qsl_idx"), int) for r in rows
    ):
        return None
    return rows
