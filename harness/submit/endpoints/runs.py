"""Finds the folders in WORK that contain the official client's runs, and the state of each point."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core.files import read_json
from harness.errors import ConfigError, one_line
from harness.submit.plan.attempts import RUNS, attempts, next_number

RUN, CONFIG, REPORT, WITNESS, LOG = "run.json", "asked.yaml", "report", "witness.json", "client.log"
SERVER_TIMES = {
    "first_token": (
        *("vllm:time_to_first_token_seconds", "sglang:time_to_first_token_seconds"),
        "harness_serve_first_token_seconds",
    ),
    "request": (
        *("vllm:e2e_request_latency_seconds", "sglang:e2e_request_latency_seconds"),
        "harness_serve_request_seconds",
    ),
}
"""Maps a measured time to the names of the histograms in which servers report this time. `run` reads the histograms'
sums and counts.
"""

DONE, MISSING, STALE, FAILED = "done", "missing", "stale", "failed"
_VARYING = ("report_dir",)
"""Configuration keys that may change without making a run stale."""


class Attempt(NamedTuple):
    folder: Path

    @property
    def report(self) -> Path:
        return self.folder / REPORT

    @property
    def events(self) -> Path:
        return self.report / "events.jsonl"

    @property
    def summary(self) -> Path:
        return self.report / "performance" / "result_summary.json"

    @property
    def accuracy(self) -> Path:
        return self.report / "accuracy" / "accuracy_results.json"

    def run(self) -> Mapping[str, Any]:
        """Returns what the harness recorded before and after the run. Raises a ConfigError if the record is missing."""
        return read_json(self.folder / RUN)


def point_folder(work: Path, name: str) -> Path:
    return work / RUNS / name


def newest(work: Path, name: str) -> Attempt | None:
    """Returns the newest attempt at a point, even if the attempt did not produce a result."""
    found = attempts(work, name)
    return Attempt(found[-1]) if found else None


def next_attempt(work: Path, name: str) -> Attempt:
    return Attempt(point_folder(work, name) / f"attempt-{next_number(work, name)}")


def state(work: Path, name: str, asked: Mapping[str, Any]) -> tuple[str, str]:
    """Returns a point's state and the reason for this state. asked: the configuration that a new run would use."""
    attempt = newest(work, name)
    if attempt is None:
        return MISSING, ""
    found, why = state_of(attempt)
    if found == DONE and (differing := _differing(attempt.run().get("asked"), asked)):
        return STALE, f"the run was made with a different {differing}"
    return found, why


def state_of(attempt: Attempt) -> tuple[str, str]:
    """Returns whether an attempt is done or failed, and the reason for this state. Ignores whether the attempt's
    settings match the request.
    """
    try:
        run = attempt.run()
        summary = read_json(attempt.summary)
    except ConfigError:
        return FAILED, f"the client wrote no result: see {attempt.folder / LOG}"
    if run.get("status") != 0:
        return (
            FAILED,
            f"the client ended with status {run.get('status')}: see {attempt.folder / LOG}",
        )
    if summary.get("complete") is False or summary.get("state") not in (None, "complete"):
        return FAILED, f"the client's result is {summary.get('state')}"
    if run.get("changed"):
        return FAILED, "the client was modified during the run"
    if why := all_failed(attempt):
        return FAILED, why
    return DONE, ""


def all_failed(attempt: Attempt) -> str:
    """If every request failed, returns their number and one of the errors; otherwise ''. The client regards a run as
    complete even if every request failed.
    """
    summary = read_json(attempt.summary) if attempt.summary.is_file() else {}
    failed, issued = summary.get("n_samples_failed"), summary.get("n_samples_issued")
    if not isinstance(failed, int) or not 0 < failed == issued:
        return ""
    return f"all {failed:,} requests failed{_first_error(attempt.events)}"


def _first_error(events: Path) -> str:
    try:
        with events.open(encoding="utf-8", errors="replace") as file:
            event = next(json.loads(line) for line in file if '"error.' in line)
        data = event["data"]
        return f", e.g. {one_line(str(data[-1] if isinstance(data, list) else data))}"
    except (OSError, StopIteration, ValueError, KeyError, TypeError, IndexError):
        return ""


def _differing(made: object, asked: Mapping[str, Any], where: str = "") -> str:
    """Returns the first key whose value differs between the two configurations; '' if they are equal."""
    if not isinstance(made, Mapping):
        return where or "configuration"
    for key in (*asked, *(k for k in made if k not in asked)):
        path = f"{where}.{key}" if where else str(key)
        ours, theirs = asked.get(key), made.get(key)
        if path in _VARYING or ours == theirs:
            continue
        both = isinstance(ours, Mapping) and isinstance(theirs, Mapping)
        return _differing(theirs, ours, path) if both else path  # type: ignore[arg-type]
    return ""
