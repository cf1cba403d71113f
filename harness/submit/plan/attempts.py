"""Finds the attempts at a run, WORK/runs/<run>/attempt-N, and each attempt's settings, which are stored next to the
attempt.
"""

import re
from pathlib import Path

RUNS, ASKED, CHECKED = "runs", "asked.yaml", "checked.json"
_ATTEMPT = re.compile(r"(?:attempt-)?(\d+)(?=[-.]|$)")


def attempts(work: Path, name: str) -> list[Path]:
    """Returns all attempt folders for a run, including unfinished attempts, oldest first."""
    folders = (work / RUNS / name).glob("attempt-*")
    numbered = [(_number(p), p) for p in folders if p.is_dir() and _number(p)]
    return [path for _, path in sorted(numbered)]


def newest_log(work: Path, name: str) -> Path | None:
    """Returns the log of the newest attempt that started; None if none has started."""
    logs = (work / RUNS / name).glob("attempt-*.log")
    numbered = [(number, p) for p in logs if (number := _number(p.with_suffix("")))]
    return max(numbered)[1] if numbered else None


def next_number(work: Path, name: str) -> int:
    """Returns the number for the next attempt, which is larger than any number in the file names of earlier attempts."""
    names = [path.name for path in (work / RUNS / name).glob("*")]
    return 1 + max((int(m[1]) for one in names if (m := _ATTEMPT.match(one))), default=0)


def asked_file(attempt: Path) -> Path:
    return attempt.with_name(f"{_number(attempt)}-{ASKED}")


def checked_file(attempt: Path) -> Path:
    return attempt.with_name(f"{_number(attempt)}-{CHECKED}")


def _number(path: Path) -> int:
    digits = path.name.removeprefix("attempt-").removesuffix(".partial")
    return int(digits) if digits.isdecimal() else 0
