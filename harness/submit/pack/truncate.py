"""Accuracy logs as a submission shows them: both ends, and the SHA-256 of the whole.

As mlcommons/inference's truncate_accuracy_log.py; a log that is short enough stays whole.
"""

import hashlib
from pathlib import Path

from harness.submit.rules.accuracy import CUT
from harness.submit.rules.tree.rounds import Round


def truncate(log: Path, shown: Path, found: Round) -> str:
    """Write what may be shown of `log` to `shown`; returns the SHA-256 of the whole log."""
    digest, size = hashlib.sha256(), log.stat().st_size
    end = found.shown_accuracy_log_bytes
    with log.open("rb") as f:
        head = f.read(end)
        digest.update(head)
        while chunk := f.read(1 << 20):
            digest.update(chunk)
        f.seek(max(0, size - end))
        tail = f.read(end)
    if size <= found.largest_accuracy_log_bytes:
        shown.write_bytes(log.read_bytes())
    else:
        shown.write_bytes(head + CUT + tail)
    return digest.hexdigest()
