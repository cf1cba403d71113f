"""Runs a command as on a machine with a GPU, with /sys and /proc in a different folder:

python -m tests.stand_ins.on_machine ROOT COMMAND...

COMMAND may begin with the usual words (an interpreter, -m, harness), which are skipped.
"""

import sys
from pathlib import Path
from unittest.mock import patch

from harness.cli.main import main
from harness.machine.host_log import HostReader
from harness.run.supervisor import job
from tests.stand_ins.nvml import H100, FakeNvml


def reader(device: str) -> HostReader:
    """Returns a reader that also reads the GPU, although the model computes on the processor."""
    del device
    return HostReader(Path(root), "cuda")


if __name__ == "__main__":
    root, *words = sys.argv[1:]
    sys.modules["pynvml"] = FakeNvml(H100)
    patch.object(job, "HostReader", reader).start()
    sys.exit(main(words[3:]))
