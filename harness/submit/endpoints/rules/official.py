"""Runs MLCommons' checker and mlperf-viz in an environment that the user provides, and reads their output.

The harness does not contain any part of these programs.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.child import run_program
from harness.errors import ConfigError, one_line
from harness.submit.endpoints.environments import (
    environment_variables,
    is_environment,
    make_environment,
    python_of,
)
from harness.submit.endpoints.rules.validate import Checked

CHECKER, VIZ = "submission-checker", "mlperf-viz"
PACKAGES = {CHECKER: "endpoints-submission-cli", VIZ: "mlperf-viz"}
"""Maps a tool to the package that installs it. The versions are not pinned, because only the newest tools know the
rules of the newest cohort.
"""

LIMIT_S = 300.0
_CHECK = "from submission_checker.cli import main; main()"
_VIZ_WARNINGS = 3
"""Exit status of mlperf-viz when it prints warnings."""


class Outcome(NamedTuple):
    tool: str
    passed: bool
    errors: Sequence[tuple[str, str, str]]
    """Each error as a tuple (rule, path, message)."""
    warnings: Sequence[tuple[str, str, str]]
    crash: str = ""
    """Reason why the tool produced no result; '' if the tool produced one."""
    version: str = ""
    """Version of the tool; '' if unknown."""


def ensure(folder: Path, *, install: bool) -> None:
    """Raises a ConfigError if the environment does not exist. If `install` is set, creates a missing environment with
    uv instead.
    """
    if install:
        make_environment(folder, tuple(PACKAGES.values()))
    elif not is_environment(folder):
        raise ConfigError(
            f"--official {folder} is not a Python environment: add --install to create one with uv"
        )


def run_tools(environment: Path, tree: Path, checked: Checked) -> list[Outcome]:
    """Runs both tools on each submission in the tree."""
    outcomes = []
    for root in checked.roots or [""]:
        folder = (tree / root).absolute()
        outcomes += [_checker(environment, folder), _viz(environment, folder)]
    return [
        outcome._replace(version=version_of(environment, PACKAGES[outcome.tool]))
        for outcome in outcomes
    ]


def version_of(environment: Path, package: str) -> str:
    """Returns an installed package's version; '' if the package was not installed from a wheel."""
    stem = package.replace("-", "_")
    found = sorted(environment.glob(f"lib/python*/site-packages/{stem}-*.dist-info"))
    return found[-1].name.removeprefix(f"{stem}-").removesuffix(".dist-info") if found else ""


def _checker(environment: Path, tree: Path) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        answer = Path(scratch) / "answer.json"
        words = [str(python_of(environment)), "-I", "-c", _CHECK, "check", str(tree), "--strict"]
        try:
            done = run_program([*words, "-o", str(answer)], LIMIT_S, env=environment_variables())
            rows = json.loads(answer.read_text(encoding="utf-8"))
        except (OSError, ValueError, subprocess.TimeoutExpired) as e:
            return Outcome(CHECKER, False, (), (), one_line(e))
    found = list(_rows(rows, tree))
    by = {
        name: [row[1:] for row in found if row[0] == severity]
        for name, severity in (("errors", "error"), ("warnings", "warning"))
    }
    if done.returncode and not found:
        return Outcome(CHECKER, False, (), (), one_line(done.stdout[-300:]))
    return Outcome(CHECKER, not done.returncode, by["errors"], by["warnings"])


def _rows(content: Any, tree: Path) -> Iterator[tuple[str, str, str, str]]:
    """Yields (severity, rule, path, message) for each fault that the checker reports."""
    rows = content.get("results", content.get("findings")) if isinstance(content, dict) else content
    for row in rows if isinstance(rows, list) else []:
        if isinstance(row, dict) and row.get("severity") in ("error", "warning"):
            path = str(row.get("path") or "").replace(f"{tree}/", "")
            yield str(row.get("severity")), str(row.get("rule")), path, str(row.get("message"))


def _viz(environment: Path, tree: Path) -> Outcome:
    program = environment / "bin" / "mlperf-viz"
    if not program.exists():
        return Outcome(VIZ, False, (), (), "it is not installed in this environment")
    with tempfile.TemporaryDirectory() as scratch:
        bundle = Path(scratch) / "bundle.json"
        words = [str(program), str(tree), "--export", str(bundle), "--strict", "--no-browser"]
        try:
            done = run_program(words, LIMIT_S, env=environment_variables())
        except (OSError, subprocess.TimeoutExpired) as e:
            return Outcome(VIZ, False, (), (), one_line(e))
    lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    if done.returncode in (0, _VIZ_WARNINGS):
        noted = [("warning", "", line) for line in lines if "warn" in line.lower()]
        return Outcome(VIZ, not done.returncode, (), noted if done.returncode else ())
    return Outcome(VIZ, False, (), (), one_line("; ".join(lines[-3:]) or "no output"))


def lines(outcome: Outcome) -> Iterator[str]:
    """Yields the lines about one tool: its verdict, then each error and warning once."""
    name = f"{outcome.tool} {outcome.version}".strip()
    if outcome.crash:
        yield f"official ({name}): no answer: {outcome.crash}"
        return
    verdict = "passed" if outcome.passed else "failed"
    counts = f"{len(outcome.errors)} errors, {len(outcome.warnings)} warnings"
    yield f"official ({name}): {verdict}: {counts}"
    for word, rows in (("error", outcome.errors), ("warning", outcome.warnings)):
        for rule, path, message in dict.fromkeys(rows):
            where = f" {path}" if path else ""
            yield f"    {word} {rule}{where}: {one_line(message)}"
