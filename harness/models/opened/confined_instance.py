"""Starts the process of a plug-in's instance, and lets the process write only to one folder."""

import os
from pathlib import Path

from harness.machine.landlock import write_only_in

ALSO_WRITABLE = (Path("/dev"), Path("/proc"))
"""Folders that a confined instance may also write to, because libraries use accelerators and shared memory in /dev, and
write their threads' names to /proc.
"""


def main() -> None:
    """Runs the instance's process. The variable TMPDIR names the folder to which the process may write."""
    why_not = write_only_in([Path(os.environ["TMPDIR"]), *ALSO_WRITABLE])
    # The import must come after the write restriction, because importing NumPy starts threads, and the restriction
    # applies only to threads that start later.
    from harness.models.opened import separate_instance

    separate_instance.main(f"everywhere ({why_not})" if why_not else "its temporary folder")
