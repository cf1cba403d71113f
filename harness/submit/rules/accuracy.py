"""Checks the accuracy run: its log, its score, and the truncated log with its hash."""

import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence

from harness.submit.rules.findings import Finding
from harness.submit.rules.rows import (
    CUT,
    impossible,
    shown_answers,
    shown_rows,
    whole_rows,
    wrong_end,
)
from harness.submit.rules.run import ACCURACY_MODE, any_run
from harness.submit.rules.tree.rounds import Benchmark, Bound
from harness.submit.rules.tree.submission import ACCURACY, Result, RunLog
from harness.submit.rules.tree.tree import join

ACCURACY_LOG, ACCURACY_TEXT = "mlperf_log_accuracy.json", "accuracy.txt"
_HASH = re.compile(r"^hash=([\w\d]+)$", re.MULTILINE)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_COUNTS = re.compile(r"^accuracy=([\d.]+)%, good=(\d+), total=(\d+)", re.MULTILINE)
_COUNTED_SLACK_PERCENT = 0.001
"""A stated percentage may differ from the counts by at most this rounding error, because accuracy=...% has three digits
after the decimal point.
"""

_SAME_SHARE = 0.001
"""Two scores in one file count as equal up to this relative difference, because the scores may be written with
different precision.
"""


def accuracy(result: Result, run: RunLog | None) -> Iterator[Finding]:
    benchmark = result.benchmark
    if run is not None:
        yield from any_run(result, run, ACCURACY_MODE)
        if benchmark is not None and result.scenario is not None:
            yield from _counts(run, benchmark, result.scenario)
    if benchmark is None or result.scenario is None:
        return
    yield from _score(result, benchmark.targets_in(result.scenario), benchmark)
    log = result.inside(ACCURACY, ACCURACY_LOG)
    rows = whole_rows(result.tree.content(log) or b"")  # None if the log is truncated or missing
    samples = len({row.sample for row in rows}) if rows else None
    expected = benchmark.samples_in(result.scenario)
    if samples is not None and samples != expected:
        actual = f"{samples:,} different samples were answered"
        yield Finding("dataset-size", log, actual, f"{expected:,}")
    yield from truncated(result, result.inside(ACCURACY), once=True)
    videos = {n.split(".")[0] for n in result.tree.files(result.inside(ACCURACY, "videos"))}
    for number in benchmark.accuracy_videos:
        if str(number) not in videos and number < dataset_samples(result):
            path = result.inside(ACCURACY, "videos", f"{number}.mp4")
            yield Finding("missing-file", path, "no such file", "this file")


def _counts(run: RunLog, benchmark: Benchmark, scenario: str) -> Iterator[Finding]:
    """Checks the number of samples. A scenario that needs fewer samples than the benchmark may select them from the
    whole data set.
    """
    file, expected = run.file, benchmark.samples_in(scenario)
    keys = ("effective_accuracy_sample_count", "qsl_reported_total_count")
    answered, total = (run.number(key) for key in keys)
    for key, count in zip(keys, (answered, total), strict=True):
        if count != expected and (key == keys[0] or count != benchmark.samples):
            yield Finding("dataset-size", file, f"{key}: {run.text(key)}", f"{expected}")
    if answered is not None and total is not None and answered > total:
        actual = f"{answered:,.0f} samples issued, but the data set has {total:,.0f}"
        yield Finding("sample-override", file, actual, "samples that the data set has")


def _score(result: Result, targets: Mapping[str, Bound], benchmark: Benchmark) -> Iterator[Finding]:
    file = result.inside(ACCURACY, ACCURACY_TEXT)
    if not result.tree.has(file):
        return  # the layout check reports the missing file
    text = result.tree.text(file)
    scores = result.round.scores(text, {**targets, **benchmark.limits})
    bounds = dict(targets)
    for metric in targets:
        values = scores.get(metric, [])
        if not values or not all(math.isfinite(value) for value in values):
            expected = f"a line that matches {result.round.patterns[metric]}"
            yield Finding("accuracy-text", file, f"no {metric}", expected)
            del bounds[metric]
            continue
        highest = result.round.highest_scores.get(metric, math.inf)
        if max(values) > highest:
            expected = f"at most {highest:g}"
            yield Finding("accuracy-text", file, f"{metric} {max(values):.10g}", expected)
        if max(values) - min(values) > _SAME_SHARE * abs(max(values)):
            actual = f"{metric} is {values[0]:.10g} in its first line and {values[-1]:.10g} in its last line"
            yield Finding("accuracy-text", file, actual, "one score")
    if not result.submitter.is_open:
        limits = {m: v for m, v in benchmark.limits.items() if m in bounds or m not in targets}
        for actual, expected in out_of_bounds(scores, bounds, limits):
            yield Finding("accuracy-target", file, actual, expected)
    yield from _consistent(file, text, benchmark.samples_in(str(result.scenario)))


def out_of_bounds(
    scores: Mapping[str, Sequence[float]],
    targets: Mapping[str, Bound],
    limits: Mapping[str, Bound],
) -> Iterator[tuple[str, str]]:
    """Yields an (actual, expected) pair for each score that is below its target, above its limit, missing, or not a
    number.

    scores: maps a metric to all its values.
    """
    for metric, target in targets.items():
        if fault := _outside(scores.get(metric, ()), target.value, math.inf):
            yield fault, f"{metric} of at least {target.value:.10g}"
    for metric, limit in limits.items():
        if fault := _outside(scores.get(metric, ()), -math.inf, limit.value):
            yield fault, f"{metric} of at most {limit.value:.10g}"


def _outside(values: Sequence[float], least: float, most: float) -> str:
    """Returns the first value outside the bounds, `missing` or `not a number`;
    '' if every value is within the bounds.
    """
    if not values:
        return "missing"
    if any(map(math.isnan, values)):
        return "not a number"
    value = min(values) if min(values) < least else max(values)
    return "" if least <= value <= most else f"{value:.10g}"


def _consistent(file: str, text: str, samples: int) -> Iterator[Finding]:
    """Checks a line such as accuracy=76.46%, good=38230, total=50000. All samples must be counted, and the numbers must
    be consistent.
    """
    match = _COUNTS.search(text)
    if match is not None and int(match[3][:18]) != samples:
        yield Finding("dataset-size", file, f"total={match[3]:.18}", f"total={samples}")
    yield from counted_score(file, text)


def counted_score(file: str, text: str) -> Iterator[Finding]:
    """Checks that a score agrees with the counts in the same line."""
    match = _COUNTS.search(text)
    if match is None:
        return
    good, total = int(match[2][:18]), int(match[3][:18])
    percent = 100.0 * good / total if total else math.nan
    stated = match[1]
    if (
        stated.count(".") <= 1
        and not abs(float(stated.strip(".") or "nan") - percent) <= _COUNTED_SLACK_PERCENT
    ):
        yield Finding("accuracy-counts", file, f"accuracy={stated}%", f"{percent:.3f}% of {total}")


def padding(result: Result) -> int:
    """Returns the largest number of samples that an accuracy run may repeat. LoadGen repeats samples to fill the last
    query of each loaded set.
    """
    run, held = result.accuracy, "effective_performance_sample_count"
    if run is None or result.measured_scenario != "MultiStream":
        return 0
    sets = math.ceil(dataset_samples(result) / max(1, int(run.number(held) or 1)))
    return sets * (result.round.multi_stream_samples - 1)


def dataset_samples(result: Result) -> int:
    """Returns the number of samples in the data set, from the accuracy run's log if possible, otherwise from the round."""
    logged = result.accuracy.number("qsl_reported_total_count") if result.accuracy else None
    return int(logged or (result.benchmark.samples if result.benchmark else 0))


def truncated(result: Result, folder: str, *, once: bool) -> Iterator[Finding]:
    """Checks the size, format and rows of the log in `folder`, and the log's hash in accuracy.txt.

    once: whether the log is from an accuracy run, in which each sample occurs once.
    """
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
    yield from shown_log(result, path, content, once=once)
    if not tree.has(text_path):
        return
    if len({match[1] for match in _HASH.finditer(tree.text(text_path))}) > 1:
        yield Finding("accuracy-hash", text_path, "several hashes", "the raw log's SHA-256")
    stated = stated_hash(result, folder)
    if not _SHA256.fullmatch(stated):
        actual = f"hash={stated}" if stated else "no line that begins with hash="
        yield Finding("accuracy-hash", text_path, actual[:200], "the raw log's SHA-256")
        return
    is_whole = CUT not in content and not _log_problem(content)
    whole = hashlib.sha256(content).hexdigest() if is_whole else stated
    if whole != stated:
        yield Finding("accuracy-hash", text_path, f"hash={stated}", f"hash={whole}")


def shown_log(result: Result, path: str, content: bytes, *, once: bool) -> Iterator[Finding]:
    """Checks a whole or truncated log: its format, the rows that it shows, and the sizes of its two ends."""
    if problem := _log_problem(content):
        yield Finding("accuracy-log", path, problem, "a list of answers in LoadGen's format")
    rows, most = shown_rows(content), padding(result)
    for fault in impossible(rows, dataset_samples(result), once=once, padding=most):
        yield Finding("accuracy-log", path, fault, "rows of one run")
    scenario = str(result.measured_scenario) if once else ""
    if fault := wrong_end(content, dataset_samples(result), scenario):
        yield Finding("accuracy-log", path, fault, "the two ends of a longer log")
    shown, ends = result.round.shown_accuracy_log_bytes, content.split(CUT)
    if len(ends) > 1 and [len(end) for end in ends] != [shown, shown]:
        actual = f"ends of {' and '.join(f'{len(end):,}' for end in ends)} bytes"
        expected = f"two ends of {shown:,} bytes, as truncation makes them"
        yield Finding("accuracy-log", path, actual, expected)


def stated_hash(result: Result, folder: str) -> str:
    """Returns the hash in accuracy.txt next to the log in `folder`; '' without a hash."""
    match = _HASH.search(result.tree.text(join(folder, ACCURACY_TEXT)))
    return match[1] if match else ""


def _log_problem(content: bytes) -> str:
    """Returns why the content is not a whole or truncated accuracy log with answers; '' if the content is such a log."""
    try:
        shown_answers(content)
    except ValueError:
        return "an answer that is not hexadecimal"
    if CUT not in content:
        rows = whole_rows(content)
        return "" if rows else "no answer" if rows == [] else "not a list of answers"
    head, _, tail = content.partition(CUT)
    if not re.match(rb'\[\s*\{\s*"seq_id"', head) or not tail.rstrip().endswith(b"]"):
        return "the two ends are not the ends of a list of answers"
    return "" if b'"qsl_idx"' in head else "no answer"
