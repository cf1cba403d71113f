"""Truncates accuracy logs to both ends and computes the SHA-256 of the whole.

Source: mlcommons/inference, truncate_accuracy_log.py. A log that is short enough stays whole.
"""

import hashlib
from pathlib import Path

from harness.submit.rules.accuracy import CUT
from harness.submit.rules.tree.rounds import Round


def truncate(log: Path, shown: Path, rules: Round) -> str:
    """Writes the truncated `log` to `shown`; returns the SHA-256 of the whole log."""
    digest, size = hashlib.sha256(), log.stat().st_size
    end = rules.shown_accuracy_log_bytes
    with log.open("rb") as f:
        head = f.read(end)
        digest.update(head)
        while chunk := f.read(1 << 20):
            digest.update(chunk)
        f.seek(max(0, size - end))
        tail = f.read(end)
    if size <= rules.largest_accuracy_log_bytes:
        shown.write_bytes(log.read_bytes())
    else:
        shown.write_bytes(head + CUT + tail)
    return digest.hexdigest()
