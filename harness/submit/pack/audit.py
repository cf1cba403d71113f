"""Packs an audit, after verifying it with MLCommons' scripts (--official) or with our own verification."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.errors import ConfigError
from harness.loadgen.logs import ACCURACY, AccuracyLogError, read_logged_answers
from harness.submit.plan.finished_run import FinishedRun
from harness.submit.rules.audit import BASELINE, COMPLIANCE
from harness.submit.rules.official import verify_audit, verify_test06
from harness.submit.rules.tree.consistency import TEST06, verify_consistency
from harness.submit.rules.tree.verify import PASS, TEST01, verify


class PackedAudit(NamedTuple):
    texts: Mapping[str, str]
    """File name -> content for the audit's folder."""
    accuracy_texts: Mapping[str, str]
    """File name -> content for its accuracy folder: both scores if answers differ, for TEST06 the whole log."""
    score_text: str
    """The score of the logged answers; '' if the audit logs no answers."""


def pack_audit(
    name: str,
    performance: FinishedRun,
    accuracy: FinishedRun,
    audit: FinishedRun,
    official: Path | None,
    end_tokens: Sequence[int],
) -> PackedAudit:
    """Verifies the audit with the untruncated logs of all three runs. end_tokens: the benchmark's end tokens."""
    folders = (performance.logs, accuracy.logs, audit.logs)
    try:
        if name == TEST06:
            return _consistency(audit, official, end_tokens)
        if official is not None:
            verified = verify_audit(official, name, *folders, audit.answer_dtype)
        else:
            verified = verify(name, *folders, audit.answer_dtype)
        if name != TEST01:
            return PackedAudit(verified.texts, {}, "")
        scores = accuracy.scored(audit)
    except AccuracyLogError as e:
        raise ConfigError(f"{audit.scenario}-{name}: {e}: run it again") from None
    if scores is None:
        return PackedAudit(verified.texts, {}, "not measured")
    before, after = scores
    both = {}
    if PASS not in verified.texts["verify_accuracy.txt"]:
        both = {BASELINE: before.line + "\n", COMPLIANCE: after.line + "\n"}
    return PackedAudit(verified.texts, both, after.line)


def _consistency(
    audit: FinishedRun, official: Path | None, end_tokens: Sequence[int]
) -> PackedAudit:
    dtype = audit.answer_dtype
    if official is not None:
        texts = verify_test06(official, audit.logs, dtype, audit.scenario).texts
    else:
        answers = read_logged_answers(audit.accuracy_log)
        texts = {
            "verify_accuracy.txt": verify_consistency(answers, dtype, end_tokens, audit.scenario)
        }
    return PackedAudit(texts, {ACCURACY: audit.accuracy_log.read_text(encoding="utf-8")}, "")
