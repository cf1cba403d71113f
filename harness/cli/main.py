"""The entry of the program: finds the verb, calls it, and turns its errors into lines and an exit status.

No module is imported before it is needed: `--help` takes a quarter of a second at most.
"""

import os
import sys
from collections.abc import Sequence
from io import TextIOWrapper
from pathlib import Path

from harness.cli import verbs
from harness.core.console import say, show
from harness.errors import HarnessError


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns the exit status. Only a HarnessError is caught; every other error is a bug of ours."""
    _fill_standard_streams()
    try:
        name, words = verbs.find(sys.argv[1:] if arguments is None else arguments)
        if name not in verbs.VERBS:
            show(verbs.group_page(name))
            return 0
        return verbs.VERBS[name](words)
    except HarnessError as e:
        say(str(e))
        return e.exit_status
    except KeyboardInterrupt:  # before the run took the signals over
        say("stopped by Ctrl-C")
        return 130


def _fill_standard_streams() -> None:
    """Opens /dev/null in place of a closed stream: the next file would get its number and our output.
    Characters that stdout cannot encode are printed as escapes, as those on stderr are.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - for good
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
