"""Defines every error that a user can see.

HarnessError                 shown as one line a problem, exit status = .exit_status
+-- ConfigError          2   the command line or a file is wrong; nothing was measured
+-- PluginUnavailable    3   a plug-in cannot be imported here, or raises in load or warm-up
+-- RunInvalid           4   the run finished and its numbers must not be quoted
|   +-- RunHopeless          a search ended it: too many queries were late already
+-- RunDied              5   the measured process died or hung
|   +-- LoadHostLost         one of those that share the load
+-- Regression           6   a comparison found what --fail-on forbids, or that the other side alone misses its SLO

Any other exception that reaches the top is a bug of ours and keeps its traceback.
"""

import re
from collections.abc import Iterable, Sequence


class HarnessError(Exception):
    """One line a problem: what happened, to what, and what to do next."""

    exit_status = 1


class ConfigError(HarnessError):
    exit_status = 2


class PluginUnavailable(HarnessError):
    exit_status = 3


class RunInvalid(HarnessError):
    exit_status = 4


class RunHopeless(RunInvalid):
    """The SLO was missed whatever followed, so the measured process was killed."""


class RunDied(HarnessError):
    exit_status = 5


class RunHung(RunDied):
    """The measured process answered no sample although some were due, and was killed."""


class LoadHostLost(RunDied):
    """One of several measured processes that share the load died or hung, or its machine is gone."""


class Regression(HarnessError):
    exit_status = 6


def refuse(problems: Iterable[str]) -> None:
    """Raise one ConfigError with every problem, each once; return where there is none."""
    if text := "\n".join(dict.fromkeys(problems)):
        raise ConfigError(text)


MOST_PROBLEMS = 20
"""Problems shown of one file; a file with a wrong column has as many problems as rows."""


def some_of(problems: Sequence[str]) -> str:
    """The first MOST_PROBLEMS, one a line, and a line that counts the others."""
    shown = list(problems[:MOST_PROBLEMS])
    if more := len(problems) - len(shown):
        shown.append(f"and {more:,} more problems like these")
    return "\n".join(shown)


def say_once(problems: Sequence[str]) -> list[str]:
    """Problems that say the same of several files, `FILE: text`, as one line that counts the others."""
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
"""Source positions at which a framework's C++ code raised an error; they would hide the cause."""

_ERRNO = re.compile(r"^\[Errno -?\d+\] ")
_LOOKED_AT = 4000
"""Characters of a text, which may be a server's and very long."""


def one_line(error: BaseException | str) -> str:
    """The text of an error as one line of at most 300 characters, without the number of an OSError and without places
    in the source of a framework.
    """
    try:
        text = " ".join(str(error).split())
    except Exception as e:  # noqa: BLE001 - __str__ of a plug-in's exception
        return f"its text cannot be had: __str__ raised {type(e).__name__}"
    text = _ERRNO.sub("", text)
    text = " ".join(_PLACES.sub(" ", text[:_LOOKED_AT]).split()) or text
    return text if len(text) <= 300 else text[:300] + "…"


def type_and_text(error: BaseException) -> str:
    """`ValueError: its text`; the type alone of an exception without a text, such as KeyboardInterrupt.

    The text alone where the harness, or a connection, raised it: such a text says what the type does.
    """
    text = one_line(error)
    is_own = type(error).__module__.startswith("harness.") or isinstance(error, ConnectionError)
    return text if is_own and text else ": ".join(filter(None, [type(error).__name__, text]))


BY_EXIT_STATUS: dict[int, type[HarnessError]] = {
    error.exit_status: error for error in (ConfigError, PluginUnavailable, RunInvalid, RunDied)
}
