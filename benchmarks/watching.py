"""Runs the command with or without an active supervisor: watching.py looks|blind ARGUMENTS...

looks: the supervisor also formats the progress line that a terminal would show, and discards the line.
blind: the supervisor never reads the journal or the machine.
"""

import sys
from contextlib import AbstractContextManager, nullcontext
from unittest.mock import patch

from harness.cli.main import main
from harness.run.progress import Progress
from harness.run.supervisor import job, loadgen_run, measured_process
from harness.run.supervisor.watchdog import Now, Watchdog


class _Blind(Watchdog):
    """A watcher that never reads the journal."""

    def look(self) -> Now:
        return Now(0, 0, 0, None, 0)


def _never(*_: object) -> AbstractContextManager[None]:
    """Replaces the thread that would read the machine's sensors."""
    return nullcontext()


class _Discarded(Progress):
    """A display that is due at every look, and that discards its input."""

    @property
    def is_due(self) -> bool:
        return True

    def show(self, *_: object, **__: object) -> None:
        """Discards the line."""


if sys.argv[1:2] not in (["looks"], ["blind"]):
    sys.exit(__doc__)
if sys.argv[1] == "blind":
    patch.object(loadgen_run, "Watchdog", _Blind).start()
    patch.object(job, "Repeated", _never).start()
    patch.object(measured_process, "LOOK_EVERY_S", 3600.0).start()
else:
    patch.object(job, "Progress", _Discarded).start()
sys.exit(main(sys.argv[2:]))
