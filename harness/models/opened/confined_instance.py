"""Starts the process of a plug-in's instance. The process may write only into its folder."""

import os
from pathlib import Path

from harness.machine.landlock import write_only_in

ALSO_WRITABLE = (Path("/dev"), Path("/proc"))
"""Folders that a confined instance may also write to: libraries use accelerators and shared memory in /dev, and write
their threads' names to /proc.
"""


def main() -> None:
    """Runs the process. The variable TMPDIR names the folder into which it may write."""
    why_not = write_only_in([Path(os.environ["TMPDIR"]), *ALSO_WRITABLE])
    # Imported after the limit is set. NumPy's import starts threads, and the limit applies only to
    # threads that start after it.
    from harness.models.opened import separate_instance

    separate_instance.main(f"everywhere ({why_not})" if why_not else "its temporary folder")
