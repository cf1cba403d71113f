"""The command on a machine whose /sys and /proc are in another folder:

python -m tests.stand_ins.on_machine ROOT COMMAND...

COMMAND begins with the words that would start it: an interpreter, -m, harness. They are passed over.
"""

import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

from harness.cli.main import main
from harness.machine.host_log import HostReader
from harness.run.supervisor import job

if __name__ == "__main__":
    root, *words = sys.argv[1:]
    patch.object(job, "HostReader", partial(HostReader, Path(root))).start()
    sys.exit(main(words[3:]))
