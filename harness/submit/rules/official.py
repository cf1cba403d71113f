"""Runs MLCommons' checkers from the user's checkout, and compares their verdicts with the harness's verdicts.

The harness does not contain any part of these checkers.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from harness.core.child import run_program
from harness.errors import ConfigError, one_line
from harness.loadgen.logs import ACCURACY
from harness.submit.rules.tree.consistency import DTYPES, TEST06
from harness.submit.rules.tree.entropy import TEST08
from harness.submit.rules.tree.lengths import TEST09
from harness.submit.rules.tree.tree import is_folder
from harness.submit.rules.tree.verify import FAIL, PASS, TEST01, Verified
from harness.submit.rules.validate import Checked

LIMIT_S = 900.0
_TOOLS = Path("tools/submission")
CHECKERS: Mapping[str, tuple[str, ...]] = {
    "new": ("-m", "submission_checker.main"),
    "legacy": ("submission_checker_old.py",),
}
_PREFIX = r"(?:(?:\w+):main:|\[[^\]]*\] )"
"""Prefix of a log line in either checker's format."""

_RESULT = re.compile(rf"^{_PREFIX}(Results|NoResults) ((?:closed|open|network)/[^/]+/results/\S+)")
_ERROR = re.compile(r"^(?:ERROR:main:|\[[^\]]* ERROR\] )(.*)$")
_TOTALS = re.compile(rf"^{_PREFIX}(.*(?:NoResults=|SUMMARY:).*)$")
_DTYPES = ("float32", "int32", "int64")
"""Answer types that the official script for TEST01 accepts."""

_LOG_FILE = "/performance/run_1/mlperf_log_detail.txt"


class Outcome(NamedTuple):
    checker: str
    results: Mapping[str, bool]
    """Maps a result's path to whether the result passed."""
    passed: bool
    summary: str
    """Summary as printed by the checker."""
    crash: str
    """Last line that a crashed checker printed; '' if it did not crash."""
    errors: tuple[str, ...]
    """Error messages from the checker."""


def tools_of(checkout: Path) -> Path:
    """Returns the folder that contains the checkers. Raises a ConfigError if the checkout does not contain the
    checkers.
    """
    folder = checkout / _TOOLS
    if not is_folder(folder / "submission_checker"):
        raise ConfigError(
            f"--official {checkout} has no {_TOOLS}/submission_checker: pass a checkout of "
            "mlcommons/inference"
        )
    return folder


def run_checkers(
    checkout: Path, tree: Path, version: str, only: str | None = None
) -> list[Outcome]:
    """Runs both checkers on the tree. Raises a ConfigError if the checkout does not contain the checkers."""
    folder = tools_of(checkout)
    there = {
        name: words
        for name, words in CHECKERS.items()
        if words[0] == "-m" or (folder / words[0]).is_file()
    }
    return [_run(name, words, folder, tree, version, only) for name, words in there.items()]


def _run(
    name: str, words: tuple[str, ...], folder: Path, tree: Path, version: str, only: str | None
) -> Outcome:
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, *words, "--input", str(tree.absolute()), "--version", version]
        command += ["--csv", str(Path(scratch) / "summary.csv")]
        command += ["--submitter", only] if only else []
        try:
            done = _call(command, folder)
        except subprocess.TimeoutExpired:
            return Outcome(name, {}, False, "", f"the checker took longer than {LIMIT_S:.0f} s", ())
        except OSError as e:
            return Outcome(name, {}, False, "", f"the checker did not start: {e.strerror}", ())
    return read_outcome(name, done.returncode, done.stdout.replace(f"{tree.absolute()}/", ""))


def _call(command: Sequence[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """Runs a script from the checkout with `folder` as the working directory, and prevents the script from writing
    files to the checkout.
    """
    variables = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    return run_program(command, LIMIT_S, cwd=folder, env=variables)


def read_outcome(name: str, status: int, output: str) -> Outcome:
    lines = output.splitlines()
    results: dict[str, bool] = {}
    for line in lines:
        if match := _RESULT.search(line):
            path = match[2].removesuffix(_LOG_FILE)
            results[path] = match[1] == "Results" and results.get(path, True)
    errors = tuple(dict.fromkeys(m[1] for line in lines if (m := _ERROR.match(line))))
    reported = [m[1] for line in lines if (m := _TOTALS.match(line))]
    ended = any("SUMMARY:" in text for text in reported)
    crash = "" if ended else one_line(lines[-1]) if lines else "the checker printed nothing"
    passed = not crash and status == 0 and bool(results) and all(results.values())
    return Outcome(name, results, passed, "; ".join(reported), crash, errors)


def verify_audit(
    checkout: Path, audit: str, performance: Path, accuracy: Path, test: Path, dtype: str
) -> Verified:
    """Runs compliance/<audit>/run_verification.py on three log folders, in a temporary folder."""
    words = ["-r", "results"]
    if audit == TEST01:
        words += ["--dtype", dtype if dtype in _DTYPES else "byte"]
    logs = {
        "results/performance/run_1": performance,
        "results/accuracy": accuracy,
        "test": test,
    }
    return _verified(checkout, audit, words, logs)


def verify_test06(checkout: Path, test: Path, dtype: str, scenario: str) -> Verified:
    """Runs TEST06's run_verification.py, which needs only the audit's logs. scenario: name in the round."""
    words = ["-s", scenario, *(["--dtype", dtype] if dtype in DTYPES else [])]
    return _verified(checkout, TEST06, words, {"test": test})


def verify_test08(checkout: Path, accuracy: Path, test: Path) -> Verified:
    """Runs TEST08's run_verification.py, which prints its result. accuracy, test: folders with whole logs."""
    script = _script(checkout, TEST08)
    logs = ["-r", str(accuracy.absolute() / ACCURACY), "-t", str(test.absolute() / ACCURACY)]
    with tempfile.TemporaryDirectory() as scratch:
        try:
            done = _call([sys.executable, str(script), *logs], Path(scratch))
        except (OSError, subprocess.TimeoutExpired) as e:
            raise ConfigError(f"{script} did not run: {one_line(e)}") from e
    if PASS not in done.stdout and FAIL not in done.stdout:
        raise ConfigError(f"{script} printed no verdict: {one_line(done.stdout)}")
    return Verified(PASS in done.stdout, {"verify_accuracy.txt": done.stdout})


def verify_test09(checkout: Path, test: Path, config: Path) -> Verified:
    """Runs TEST09's run_verification.py. test: folder with the audit's logs. config: the audit's audit.config."""
    return _verified(checkout, TEST09, ["--audit-config", str(config.absolute())], {"test": test})


def _script(checkout: Path, audit: str) -> Path:
    script = checkout.absolute() / "compliance" / audit / "run_verification.py"
    if not script.is_file():
        raise ConfigError(
            f"--official {checkout} has no compliance/{audit}: pass a complete checkout"
        )
    return script


def _verified(
    checkout: Path, audit: str, words: Sequence[str], logs: Mapping[str, Path]
) -> Verified:
    """Runs the script in a temporary folder. logs: maps a path in the temporary folder to a folder of logs."""
    script = _script(checkout, audit)
    with tempfile.TemporaryDirectory() as scratch:
        here = Path(scratch)
        for place, folder in logs.items():
            (here / place).parent.mkdir(parents=True, exist_ok=True)
            (here / place).symlink_to(folder.absolute())
        command = [sys.executable, str(script), *words, "-c", "test", "-o", "out"]
        try:
            done = _call(command, here)
        except (OSError, subprocess.TimeoutExpired) as e:
            raise ConfigError(f"{script} did not run: {one_line(e)}") from e
        texts = {p.name: p.read_text() for p in sorted((here / "out" / audit).glob("verify_*.txt"))}
    if not texts:
        raise ConfigError(f"{script} wrote nothing: {one_line(done.stdout)}")
    return Verified(all(PASS in text for text in texts.values()), texts)


class Agreement(NamedTuple):
    """Compares the harness's check of a result with the official check. word: `agree`, `stricter` (only the harness's
    check fails the result) or `weaker` (only the official check fails it).
    """

    word: str
    result: str
    why: str


def agreement(ours: Checked, theirs: Outcome) -> Iterator[Agreement]:
    """Yields one agreement per result. A crashed checker does not agree with any result, because the checker itself may
    be at fault.
    """
    if theirs.crash:
        return
    for path in ours.results:
        rules = sorted({f.rule for f in ours.of_result(path)} - {"rehearsal"})
        official = theirs.results.get(path, False)
        if official == (not rules):
            yield Agreement("agree", path, ", ".join(rules))
        elif official:
            yield Agreement("stricter", path, ", ".join(rules))
        else:
            error = next((e for e in theirs.errors if path in e), "; ".join(theirs.errors[:1]))
            yield Agreement("weaker", path, error or "no reason given")
    listed = set(ours.results)
    for path, passed in theirs.results.items():
        if not passed and path not in listed and not ours.findings:
            yield Agreement("weaker", path, "; ".join(theirs.errors[:1]))


def refuses(ours: Checked, theirs: Outcome) -> bool:
    """Returns whether the checker refuses the tree and knows all benchmarks in it, so that its verdict counts."""
    return not theirs.passed and theirs.checker not in ours.unknown_to


def lines(ours: Checked, theirs: Outcome) -> Iterator[str]:
    verdict = "passed" if theirs.passed else "crashed" if theirs.crash else "failed"
    if not theirs.passed and not refuses(ours, theirs):
        verdict += ", not counted, because it does not know a benchmark of the tree"
    yield f"official ({theirs.checker}): {verdict}: {theirs.crash or theirs.summary}"
    for word, path, why in agreement(ours, theirs):
        if word != "agree":
            yield f"    our check is {word}: {path}: {why}"
    if not theirs.passed:
        yield from (f"    error: {error[:300]}" for error in theirs.errors[:20])
