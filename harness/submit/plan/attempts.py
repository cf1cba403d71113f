"""Where the runs of a request lie: WORK/runs/<run>/attempt-N, what was asked for beside each."""

from pathlib import Path

RUNS, ASKED = "runs", "asked.yaml"


def attempts(work: Path, name: str) -> list[Path]:
    """All folders of a run, oldest first, those that did not end included."""
    found = (work / RUNS / name).glob("attempt-*")
    numbered = [(_number(p), p) for p in found if p.is_dir() and _number(p)]
    return [path for _, path in sorted(numbered)]


def asked_file(attempt: Path) -> Path:
    """What this attempt was asked for."""
    return attempt.with_name(f"{_number(attempt)}-{ASKED}")


def _number(path: Path) -> int:
    digits = path.name.removeprefix("attempt-").removesuffix(".partial")
    return int(digits) if digits.isdecimal() else 0
