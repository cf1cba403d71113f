"""Returns the lines that a command prints, or the lines of the message if the command refuses."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.errors import ConfigError
from tests.faults.command import run_here

Said = Callable[..., str]
"""Type of the fixtures `prints` and `refuses`: each takes (*words, status=STATUS), runs the command in this process,
and returns what the command printed.
"""


def refusals(
    call: Callable[..., object],
    *arguments: Any,
    error: type[Exception] = ConfigError,
    **options: Any,
) -> list[str]:
    """Returns the lines of the error that the call raises."""
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    return str(caught.value).splitlines()


def refusal(call: Callable[..., object], *arguments: Any, **options: Any) -> str:
    """Returns the only line of the error that the call raises."""
    (line,) = refusals(call, *arguments, **options)
    return line


def refused(*words: str | Path) -> list[str]:
    """Runs a command that must print nothing to stdout and end with status 2; returns its lines on stderr without
    `harness: `.
    """
    done = run_here(*map(str, words))
    assert (done.status, done.printed) == (2, "")
    lines = done.said.splitlines()
    assert all(line.startswith("harness: ") for line in lines)
    return [line.removeprefix("harness: ") for line in lines]
