"""Defines every error that a user can see.

HarnessError                 shown as one line per problem, exit status = .exit_status
+-- ConfigError          2   the command line or a file is wrong; nothing was measured
+-- PluginUnavailable    3   a plug-in cannot be imported here, or raises in load or warm-up
+-- RunInvalid           4   the run finished and its numbers must not be quoted
|   +-- RunHopeless          a search ended it because too many queries were already late
+-- RunDied              5   the measured process died or hung
|   +-- LoadHostLost         a process that shares the load was lost
+-- Regression           6   a comparison found a change that --fail-on forbids, or only the other side misses its SLO

Any other exception that reaches the top is a bug of ours and keeps its traceback.
"""

import re
from collections.abc import Iterable, Sequence


class HarnessError(Exception):
    """An error whose text has one line per problem: what happened, to what, and what to do next."""

    exit_status = 1


class ConfigError(HarnessError):
    exit_status = 2


class PluginUnavailable(HarnessError):
    exit_status = 3


class RunInvalid(HarnessError):
    exit_status = 4


class RunHopeless(RunInvalid):
    """The rest of the run could no longer meet the SLO, so the measured process was killed."""


class RunDied(HarnessError):
    exit_status = 5


class RunHung(RunDied):
    """The measured process was killed because it answered no sample although some were due."""


class LoadHostLost(RunDied):
    """One of several measured processes that share the load died or hung, or its machine is gone."""


class Regression(HarnessError):
    exit_status = 6


class UnusableAnswer(ValueError):
    """An answer that a metric cannot score, so that only another run can have a score."""


def refuse(problems: Iterable[str]) -> None:
    """Raises one ConfigError that lists each problem once; returns if the list is empty."""
    if text := "\n".join(dict.fromkeys(problems)):
        raise ConfigError(text)


MOST_PROBLEMS = 20
"""Maximum number of problems shown per file, because a wrong column causes one problem per row."""


def some_of(problems: Sequence[str]) -> str:
    """Returns the first MOST_PROBLEMS problems, one per line, and a line that counts the rest."""
    shown = list(problems[:MOST_PROBLEMS])
    if more := len(problems) - len(shown):
        shown.append(f"and {more:,} more problems like these")
    return "\n".join(shown)


def say_once(problems: Sequence[str]) -> list[str]:
    """Merges problems `FILE: text` that differ only in the file into one line, which counts the other files."""
    by_text: dict[str, list[str]] = {}
    for problem in problems:
        file, colon, text = problem.partition(": ")
        by_text.setdefault(colon + text if colon else problem, []).append(file)
    return [
        text if not text.startswith(": ") else f"{_and_others(files)}{text}"
        for text, files in by_text.items()
    ]


def _and_others(files: Sequence[str]) -> str:
    return files[0] if len(files) == 1 else f"{files[0]} and {len(files) - 1:,} more"


_SIGNATURE = r"(?:[\w:~&*<>, ]*?\w\((?:[^()]|\([^()]*\))*\)(?:::<lambda\(\)>)?(?: const)?|\w+) "
_PLACES = re.compile(
    r"\[ONNXRuntimeError\] : \d+ : \w+ : |Load model from .+? failed:"
    r"|Exception from \S+:\d+:\s*|Check '[^']*' failed at \S+:\d+:\s*"
    rf"|(?:/[\w./-]+/)?\w+\.(?:cc|cpp|h|hpp|cu):\d+:? {_SIGNATURE}"
)
"""Matches C++ source positions at the start of a framework's error, which would hide the cause."""

_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_LOOKED_AT = 4000
"""Maximum number of characters read from a text; a server's text may be very long."""


def one_line(error: BaseException | str) -> str:
    """Returns an error's text as one line of at most 300 characters, without errno and framework source positions."""
    try:
        text = " ".join(str(error).split())
    except Exception as e:  # noqa: BLE001 - __str__ of a plug-in's exception
        return f"its text is not available: __str__ raised {type(e).__name__}"
    text = _ERRNO.sub("", text)
    text = " ".join(_PLACES.sub(" ", text[:_LOOKED_AT]).split()) or text
    return text if len(text) <= 300 else text[:300] + "…"


def type_and_text(error: BaseException) -> str:
    """Returns `ValueError: its text`, or the type alone if the exception has no text, e.g. KeyboardInterrupt.

    Returns only the text for connection errors and errors of the harness, because that text already states what
    the type means.
    """
    text = one_line(error)
    is_own = type(error).__module__.startswith("harness.") or isinstance(error, ConnectionError)
    return text if is_own and text else ": ".join(filter(None, [type(error).__name__, text]))


BY_EXIT_STATUS: dict[int, type[HarnessError]] = {
    error.exit_status: error for error in (ConfigError, PluginUnavailable, RunInvalid, RunDied)
}
