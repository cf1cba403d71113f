"""The command on a machine whose /sys and /proc are in another folder:

python -m tests.on_machine ROOT COMMAND...

COMMAND begins with the words that would start it: an interpreter, -m, harness. They are passed over.
"""

import sys
from functools import partial
from pathlib import Path
from unittest.mock import patch

from harness import run
from harness.cli import main
from harness.hostlog import HostReader

if __name__ == "__main__":
    root, *words = sys.argv[1:]
    patch.object(run, "HostReader", partial(HostReader, Path(root))).start()
    sys.exit(main(words[3:]))
