"""An audit's part of the tree: verified by MLCommons' scripts where the user has them, else by ours."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from harness.errors import ConfigError
from harness.loadgen.logs import AccuracyLogError
from harness.submit.pack.finished_run import Made
from harness.submit.rules.audit import BASELINE, COMPLIANCE
from harness.submit.rules.official import verify_audit
from harness.submit.rules.tree.verify import PASS, TEST01, Verified, verify


class PackedAudit(NamedTuple):
    """texts: of the audit's folder. accuracy_texts: of its accuracy folder, both scores where
    answers differ. score_text: of the answers it logged, '' where the audit logs none.
    """

    texts: Mapping[str, str]
    accuracy_texts: Mapping[str, str]
    score_text: str


def pack_audit(
    name: str, performance: Made, accuracy: Made, audit: Made, official: Path | None
) -> PackedAudit:
    """All runs untruncated, as the verification wants them."""
    try:
        found = _verified(name, performance, accuracy, audit, official)
        if name != TEST01:
            return PackedAudit(found.texts, {}, "")
        scores = accuracy.scored(audit)
    except AccuracyLogError as e:
        raise ConfigError(f"{audit.scenario}-{name}: {e}: run it again") from None
    if scores is None:
        return PackedAudit(found.texts, {}, "not measured")
    before, after = scores
    both = {}
    if PASS not in found.texts["verify_accuracy.txt"]:
        both = {BASELINE: before.line + "\n", COMPLIANCE: after.line + "\n"}
    return PackedAudit(found.texts, both, after.line)


def _verified(
    name: str, performance: Made, accuracy: Made, audit: Made, official: Path | None
) -> Verified:
    folders = (performance.logs, accuracy.logs, audit.logs)
    dtype = audit.answer_dtype
    if official is not None:
        return verify_audit(official, name, *folders, dtype)
    return verify(name, *folders, dtype)
