"""Forgeries of a finished run: each keeps several files consistent, then derives result.json from them again."""

import json
import re
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import numpy as np

from harness.core.files import write_json
from harness.results import recheck, run_folder
from harness.results.result_json import result
from tests.adversaries.edits import ACCURACY, ANSWERS, DETAIL, PERFORMANCE, SUMMARY

LABELS = Path(__file__).parents[2] / "datasets/parts/digits.npz"


class Forgery(NamedTuple):
    run: str
    about: str
    change: Callable[[Path], object]
    found: str
    """Expected words in a reason of the new result, or in a line from `check`; empty if only a signature reveals the
    forgery.
    """
    why: str = ""


def derive(folder: Path) -> None:
    """Writes result.json again, and removes the files that repeat its content."""
    config = recheck.configuration(folder)
    findings = recheck.findings(folder, config)
    findings.environment = json.loads((folder / run_folder.RESULT).read_text())["environment"]
    write_json(folder / run_folder.RESULT, result(findings))
    for name in ("report.html", "metrics.prom"):
        (folder / name).unlink()


def numbers(keys: str, change: Callable[[float], float]) -> Callable[[Path], None]:
    """Changes results in the detail log and the summary lines that repeat them. keys: a regular expression."""

    def forge(folder: Path) -> None:
        summary = folder / PERFORMANCE / SUMMARY
        lines = summary.read_text()

        def edited(match: re.Match[str]) -> str:
            nonlocal lines
            before, after = match[3], f"{change(float(match[3])):.6g}"
            if "." not in before:
                after = str(round(change(float(before))))
            for shown in (before, f"{float(before):.2f}"):
                lines = re.sub(rf": {re.escape(shown)}$", f": {after}", lines, flags=re.MULTILINE)
            return f"{match[1]}{after}"

        log = folder / PERFORMANCE / DETAIL
        text = log.read_text()
        forged = re.sub(rf'("key": "({keys})", "value": )([\d.]+)', edited, text)
        assert forged != text
        log.write_text(forged)
        summary.write_text(lines)

    return forge


def everywhere(old: str, new: str) -> Callable[[Path], None]:
    """Replaces a text in every file except the files with rows of samples."""

    def forge(folder: Path) -> None:
        for path in folder.rglob("*"):
            if path.suffix in (".json", ".txt", ".yaml", ".csv") and path.is_file():
                path.write_text(re.sub(old, new, path.read_text()))

    return forge


def all_right(folder: Path) -> None:
    """Replaces every answer in both runs with the correct label."""
    with np.load(LABELS, allow_pickle=False) as file:
        labels = file["labels"].tolist()
    for part in (PERFORMANCE, ACCURACY):
        path = folder / part / ANSWERS
        rows = json.loads(path.read_text())
        for row in rows:
            row["data"] = labels[row["qsl_idx"]].to_bytes(8, "little").hex()
        path.write_text("[\n" + ",\n".join(map(json.dumps, rows)) + "\n]\n")
    line = "accuracy=100.000%, good=500, total=500\n"
    (folder / ACCURACY / run_folder.ACCURACY_TEXT).write_text(line)


def half_the_power(folder: Path) -> None:
    path = folder / "power.csv"
    path.write_text(path.read_text().replace(",12.5", ",6.25"))


def quiet(folder: Path) -> None:
    path = folder / "findings.json"
    content = json.loads(path.read_text())
    content["load"] |= {"others": 0.0, "steal": 0.0}
    content["noise"] |= {"p50": 1000, "p99": 2000, "steal": 0.0}
    path.write_text(json.dumps(content))


def yesterday(folder: Path) -> None:
    started = json.loads((folder / "findings.json").read_text())["started"]
    day_before = datetime.fromisoformat(started) - timedelta(days=1)
    everywhere(re.escape(started), day_before.isoformat(timespec="milliseconds"))(folder)


def bound(ns: int, slo: str) -> Callable[[Path], None]:
    """Changes the SLO in every file that contains it."""

    def forge(folder: Path) -> None:
        everywhere(r"\b5000000000\b", str(ns))(folder)
        everywhere(r"p99=5s", slo)(folder)

    return forge


def twice(value: float) -> float:
    return 2 * value


def half(value: float) -> float:
    return value / 2


def both(*changes: Callable[[Path], None]) -> Callable[[Path], None]:
    def forge(folder: Path) -> None:
        for change in changes:
            change(folder)

    return forge


LATENCIES, TAIL = r"result_\S+_latency_ns", r"result_9\S+_latency_ns"
"""Regular expressions for keys in LoadGen's detail log."""

FORGERIES = [
    Forgery(
        "server", "rate doubled", numbers(r"result_\w+_samples_per_sec", twice), "numbers-disagree"
    ),
    Forgery("server", "latencies halved", numbers(LATENCIES, half), "numbers-disagree"),
    Forgery("server", "tail halved", numbers(TAIL, half), "numbers-disagree"),
    Forgery(
        *("server", "mean and maximum of 1 ns"),
        numbers(r"result_(?:mean|max)_latency_ns", lambda _: 1),
        "numbers-disagree",
    ),
    Forgery("server", "stricter bound", bound(100_000, "p99=100us"), "numbers-disagree"),
    Forgery(
        "stream", "estimate halved", numbers("early_stopping_latency_ss", half), "numbers-disagree"
    ),
    Forgery("stream", "latencies halved", numbers(LATENCIES, half), "numbers-disagree"),
    Forgery(
        *("offline", "rate doubled, latencies halved"),
        both(numbers(LATENCIES, half), numbers("result_samples_per_second", twice)),
        "numbers-disagree",
    ),
    Forgery(
        *("server", "looser bound", bound(50_000_000_000, "p99=50s"), ""),
        "all files that have the bound agree, and the run meets it",
    ),
    Forgery(
        *("server", "all answers right", all_right, ""),
        "the answers are only in LoadGen's two logs of them",
    ),
    Forgery("metered", "power halved", half_the_power, "", "only power.csv has the readings"),
    Forgery("server", "no other programs", quiet, "", "only findings.json has these readings"),
    Forgery("server", "started a day before", yesterday, "", "a model may take long to load"),
]
