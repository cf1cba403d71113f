"""Starts the process of a plug-in's instance. The process may write only into its folder."""

import os
from pathlib import Path

from harness.machine.landlock import write_only_in

ALSO_WRITABLE = (Path("/dev"), Path("/proc"))
"""Accelerators, shared memory, and the names that libraries write for their threads."""


def main() -> None:
    """Runs the process. The variable TMPDIR names the folder into which it may write."""
    why_not = write_only_in([Path(os.environ["TMPDIR"]), *ALSO_WRITABLE])
    # Imported only now, because numpy's import starts threads, and the limit applies only to later threads.
    from harness.models.opened import separate_instance

    separate_instance.main(f"everywhere ({why_not})" if why_not else "its temporary folder")
