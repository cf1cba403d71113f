"""What the user reads: results on stdout, everything else on stderr."""

import os
import sys


def show(text: str) -> None:
    """On stdout. A reader that has gone (`| head`), or a full disk, changes no exit status."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """On stderr, a line each. As on stdout: where nobody can read it, the exit status still tells."""
    try:
        for line in text.splitlines():
            print(f"harness: {line}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
