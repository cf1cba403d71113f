"""Checks whether a finished run counts for the submission. The run's files must be consistent, and an audit must pass.

`plan` stores the outcome next to the attempt and reuses the outcome until a file changes. `pack` checks every run
again. Only `pack` recomputes the score, because a slow metric takes minutes.
"""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from harness import __version__
from harness.core.files import read_json, write_json
from harness.errors import ConfigError
from harness.loadgen.logs import DETAIL, AccuracyLogError, read_detail, read_logged_answers
from harness.results import recheck
from harness.submit.plan.attempts import checked_file
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.request import Request
from harness.submit.rules.audit import changed_scores
from harness.submit.rules.tree.consistency import CONSISTENT, TEST06, verify_consistency
from harness.submit.rules.tree.entropy import TEST08, verify_entropy
from harness.submit.rules.tree.lengths import TEST09, verify_lengths
from harness.submit.rules.tree.verify import PASS, TEST01, compare, compare_answers


def fault(run: FinishedRun, made: Mapping[str, FinishedRun], request: Request) -> str:
    """Returns the reason why a VALID run does not count for the submission; '' if the run counts. made: other runs of
    the same scenario, by kind.

    Does not execute code that the folder names as a file or module.
    """
    audited = [made[kind] for kind in ("performance", "accuracy") if kind in made]
    others = audited if run.kind in request.audits else []
    state = _state([run.folder, *(other.folder for other in others)])
    path = checked_file(run.folder)
    with suppress(ConfigError):
        stored = read_json(path)
        if stored.get("state") == state and isinstance(stored.get("fault"), str):
            return str(stored["fault"])
    found = _fault(run, made, request)
    with suppress(
        OSError
    ):  # because this file is only a cache: the next call computes the outcome again
        write_json(path, {"state": state, "fault": found})
    return found


def _state(folders: list[Path]) -> str:
    """Returns a digest over the names, sizes and times of all files."""
    digest = hashlib.sha256(__version__.encode())
    for folder in folders:
        for path in sorted(p for p in folder.rglob("*") if p.is_file()):
            about = path.stat()
            name = path.relative_to(folder)
            digest.update(f"\n{name} {about.st_size} {about.st_mtime_ns}".encode())
    return digest.hexdigest()


def _fault(run: FinishedRun, made: Mapping[str, FinishedRun], request: Request) -> str:
    try:
        differences = run.differences(scores=False)
        if differences:
            return f"its files do not agree: {differences[0]}"
        if run.kind in request.audits:
            return next(_audit_faults(run, made, request), "")
    except (ConfigError, AccuracyLogError) as e:
        return str(e)
    return ""


def _audit_faults(
    audit: FinishedRun, made: Mapping[str, FinishedRun], request: Request
) -> Iterator[str]:
    """Compares the audit with its performance run, and yields the faults. `pack` verifies the audit in the same way.

    Ignores the speed in a short rehearsal, because the speed of a short run proves nothing.
    """
    if audit.kind == TEST06:
        answers, end_tokens = read_logged_answers(audit.accuracy_log), request.of_round.end_tokens
        text = verify_consistency(answers, audit.answer_dtype, end_tokens, audit.scenario)
        *checks, outcome = text.splitlines()
        if outcome != CONSISTENT:
            yield f"its answers are not consistent: {', '.join(checks)}"
        return
    if audit.kind in (TEST08, TEST09):
        yield from _text_faults(audit, made, request)
        return
    reference, test = (read_detail(run.logs / DETAIL) for run in (made["performance"], audit))
    problem = compare(audit.kind, reference, test)
    if problem and not request.is_short:
        yield f"its score is {problem}"
    if audit.kind != TEST01 or "accuracy" not in made:
        return
    accuracy = made["accuracy"]
    text = compare_answers(accuracy.accuracy_log, audit.accuracy_log, audit.answer_dtype)
    if PASS in text or recheck.untrusted(accuracy.folder):
        return
    scores = accuracy.scored(audit)
    if scores is not None:
        before, after = (score.line for score in scores)
        changed = changed_scores(request.rules, request.of_round, audit.scenario, before, after)
        for actual, expected in changed:
            yield f"its answers differ: {actual}, but only {expected} is allowed"


def _text_faults(
    audit: FinishedRun, made: Mapping[str, FinishedRun], request: Request
) -> Iterator[str]:
    """Yields the reasons for failing an audit that compares only answers."""
    if audit.kind == TEST08:
        if "accuracy" not in made:
            return
        text = verify_entropy(made["accuracy"].accuracy_log, audit.accuracy_log)
        wrong = ["NE mismatch", "num_unmatched", "num_matched"]
    else:
        answers = read_logged_answers(audit.accuracy_log)
        settings = request.rules.audit_settings(audit.kind, request.benchmark)
        text = verify_lengths(answers, audit.answer_dtype, settings)
        wrong = ["Mean output tokens", "Min threshold", "Max threshold", "check pass: False"]
    if PASS not in text:
        lines = dict.fromkeys(line.strip() for line in text.splitlines())
        shown = [line for line in lines if any(word in line for word in wrong)]
        yield f"{audit.kind} fails: {', '.join(shown[:6])}"
