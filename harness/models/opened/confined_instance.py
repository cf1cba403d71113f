"""Starts the process of a plug-in's instance, which may write into its folder only."""

import os
from pathlib import Path

from harness.machine.landlock import write_only_in

ALSO_WRITABLE = (Path("/dev"), Path("/proc"))
"""Accelerators, shared memory, and the names that libraries write for their threads."""


def main() -> None:
    """Entry of the process. TMPDIR: the folder that it may write into."""
    why_not = write_only_in([Path(os.environ["TMPDIR"]), *ALSO_WRITABLE])
    # Only now: a limit holds for later threads only, and numpy starts some when it is imported.
    from harness.models.opened import separate_instance

    separate_instance.main(f"everywhere ({why_not})" if why_not else "its temporary folder")
