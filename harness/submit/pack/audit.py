"""Verifies an audit with MLCommons' scripts (--official) or with the harness's verification, and then packs it."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.errors import ConfigError
from harness.loadgen.logs import ACCURACY, AccuracyLogError, read_logged_answers
from harness.loadgen.user_conf import AUDIT
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.plan.request import Request
from harness.submit.rules.audit import BASELINE, COMPLIANCE
from harness.submit.rules.official import (
    verify_audit,
    verify_test06,
    verify_test08,
    verify_test09,
)
from harness.submit.rules.tree.consistency import CONSISTENT, TEST06, verify_consistency
from harness.submit.rules.tree.entropy import TEST08, verify_entropy
from harness.submit.rules.tree.lengths import OUTPUT, TEST09, verify_lengths
from harness.submit.rules.tree.verify import PASS, TEST01, verify


class PackedAudit(NamedTuple):
    texts: Mapping[str, str]
    """Maps the name of a file in the audit's folder to its content."""
    accuracy_texts: Mapping[str, str]
    """Maps the name of a file in the audit's accuracy folder to its content. Contains both scores if the answers
    differ, and the whole log if the audit counts tokens.
    """
    score_text: str
    """Score of the answers that the audit logged; '' if the audit does not log answers."""


def pack_audit(
    name: str,
    performance: FinishedRun,
    accuracy: FinishedRun,
    audit: FinishedRun,
    official: Path | None,
    request: Request,
) -> PackedAudit:
    """Verifies the audit with the untruncated logs from all three runs."""
    folders = (performance.logs, accuracy.logs, audit.logs)
    try:
        if name == TEST06:
            return _consistency(audit, official, request)
        if name == TEST08:
            return _entropy(accuracy, audit, official)
        if name == TEST09:
            return _lengths(audit, official, request)
        if official is not None:
            verified = verify_audit(official, name, *folders, audit.answer_dtype)
        else:
            verified = verify(name, *folders, audit.answer_dtype)
        if name != TEST01:
            return PackedAudit(verified.texts, {}, "")
        scores = accuracy.scored(audit)
    except AccuracyLogError as e:
        raise ConfigError(f"{audit.scenario}-{name}: {e}: repeat the audit") from None
    if scores is None:
        return PackedAudit(verified.texts, {}, "not measured")
    before, after = scores
    both = {}
    if PASS not in verified.texts["verify_accuracy.txt"]:
        both = {BASELINE: before.line + "\n", COMPLIANCE: after.line + "\n"}
    return PackedAudit(verified.texts, both, after.line)


def _entropy(accuracy: FinishedRun, audit: FinishedRun, official: Path | None) -> PackedAudit:
    text = verify_entropy(accuracy.accuracy_log, audit.accuracy_log)
    if official is not None:
        text = verify_test08(official, accuracy.logs, audit.logs).texts["verify_accuracy.txt"]
    return PackedAudit({"verify_accuracy.txt": text}, {}, "")


def _lengths(audit: FinishedRun, official: Path | None, request: Request) -> PackedAudit:
    settings = request.rules.audit_settings(TEST09, request.benchmark)
    answers = read_logged_answers(audit.accuracy_log)
    texts: Mapping[str, str] = {OUTPUT: verify_lengths(answers, audit.answer_dtype, settings)}
    if official is not None:
        texts = verify_test09(official, audit.logs, audit.logs / AUDIT).texts
    return PackedAudit(texts, {ACCURACY: audit.accuracy_log.read_text(encoding="utf-8")}, "")


def _consistency(audit: FinishedRun, official: Path | None, request: Request) -> PackedAudit:
    dtype, end_tokens = audit.answer_dtype, request.of_round.end_tokens
    answers = read_logged_answers(audit.accuracy_log)
    text = verify_consistency(answers, dtype, end_tokens, audit.scenario)
    texts: Mapping[str, str] = {"verify_accuracy.txt": text}
    # MLCommons' script knows only Llama 2's end token (2), so a pass counts only if the harness's check passes, too.
    if official is not None and CONSISTENT in text:
        texts = verify_test06(official, audit.logs, dtype, audit.scenario).texts
    return PackedAudit(texts, {ACCURACY: audit.accuracy_log.read_text(encoding="utf-8")}, "")
