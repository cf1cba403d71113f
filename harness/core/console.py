"""Prints results on stdout and messages on stderr."""

import os
import sys


def show(text: str) -> None:
    """Print on stdout. A closed pipe (`| head`) or a full disk does not change the exit status."""
    try:
        print(text, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def say(text: str) -> None:
    """Print each line on stderr. A closed pipe or a full disk does not change the exit status."""
    try:
        for line in text.splitlines():
            print(f"harness: {line}", file=sys.stderr, flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
