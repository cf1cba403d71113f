"""Defines the findings that `submit check` reports. Each fault is one Finding, which refers to one of the RULES."""

from collections.abc import Mapping
from typing import NamedTuple


class Finding(NamedTuple):
    rule: str
    """A key in RULES."""
    file: str
    """Path relative to the tree's root."""
    actual: str
    """Describes what the tree contains."""
    expected: str
    """Describes what the round requires."""

    @property
    def fix(self) -> str:
        return RULES[self.rule]

    def lines(self) -> list[str]:
        return [
            f"{self.rule:<20}{self.file}",
            f"    actual    {self.actual}",
            f"    expected  {self.expected}",
            f"    fix       {self.fix}",
        ]

    def to_json(self) -> dict[str, str]:
        return {**self._asdict(), "fix": self.fix}


_AGAIN = "repeat the run with `submit run` and pack the new run"
_PACK = "let `submit pack` write the folder, or add the file by hand"
_LAYOUT = "move it out of the tree, or rename it as the round's layout requires"
_SYSTEM = "correct this file, or correct the --describe file and pack again"
_SESSION = "repeat the measurement with power-dev's client and server"
_TRUNCATE = "pack again from the raw logs, which writes the truncated log and its hash together"

RULES: Mapping[str, str] = {
    # rule about the mark of a rehearsal
    "rehearsal": "a rehearsal is not a submission: pack real runs without --rehearsal",
    # rules about the tree
    "no-results": "check the path: the layout is <root>/<division>/<submitter>/results/...",
    "unreadable": "grant read permission, or make a fresh copy of the tree",
    "too-many-files": "check the path: a submission has a few thousand files at most",
    "special-file": "replace it with a regular file or folder: links break in other checkouts",
    "bad-name": "rename it: printable ASCII without spaces and without a leading dot",
    "pycache": "delete it: Python's cache is not source code",
    "empty-folder": "delete it, or add the files that belong there",
    "large-file": "remove it: the limit is 50 MB",
    "stray-folder": _LAYOUT,
    "stray-file": _LAYOUT,
    "energy-sidecar": "remove it: MLPerf Power accepts only PTDaemon sessions",
    "missing-file": _PACK,
    "empty-file": _PACK,
    "missing-folder": _PACK,
    "bad-json": "correct the file: it must contain exactly one JSON object",
    "model-mapping": 'write {"<your folder>": "<benchmark of the round>"} into open/<submitter>/model_mapping.json',
    "unknown-benchmark": "use the round's name, or map it in model_mapping.json (open only)",
    "wrong-category": "change system_type, or submit a different benchmark",
    "unknown-scenario": "rename it to a scenario of the round, or move it out of results/",
    "missing-scenarios": "run the missing scenarios, or submit to the open division",
    "unused-system": "delete the description, or add its results",
    # system description and measurements
    "system-key": _SYSTEM,
    "system-value": _SYSTEM,
    "measurements-key": _SYSTEM,
    "user-conf": "put the user.conf of the performance run here, with only lines that LoadGen understands",
    # rules about the logs of any run
    "log-incomplete": f"the run did not end or the log was truncated: {_AGAIN}",
    "log-mixed": f"a log must contain exactly one run: {_AGAIN}",
    "log-copied": "two results cannot share one run: put each run's own logs into its folder",
    "summary-differs": "copy the summary and the detail log of the same run",
    "numbers-disagree": f"a log must stay as LoadGen wrote it: {_AGAIN}",
    "loadgen-version": f"install the round's LoadGen and use it for all runs of a result: {_AGAIN}",
    "wrong-date": f"correct the clock, or leave the log as LoadGen wrote it: {_AGAIN}",
    "wrong-scenario": "put the logs of this scenario into its folder",
    "wrong-mode": "put performance logs into performance/run_1 and accuracy logs into accuracy",
    "wrong-seed": f"install the round's LoadGen: {_AGAIN}",
    "loadgen-errors": f"remove the cause of the errors in the log, then {_AGAIN}",
    "invalid-result": f"the constraints in the log name the cause: remove it, then {_AGAIN}",
    # rules about performance runs
    "early-stopping": f"lower the rate or issue more queries: {_AGAIN}",
    "too-short": f"a run must last at least 600 s: {_AGAIN}",
    "run-limited": f"remove max_duration and max_query_count from user.conf: {_AGAIN}",
    "too-few-queries": f"make the run longer: {_AGAIN}",
    "performance-samples": f"load the round's number of samples into memory: {_AGAIN}",
    "sample-override": f"use sample counts that the data set has: {_AGAIN}",
    "scenario-settings": (
        "remove target_latency_percentile, samples_per_query and sample_concatenate_permutation from "
        f"user.conf: {_AGAIN}"
    ),
    "latency-limit": f"set target_latency to the round's bound or below: {_AGAIN}",
    "audit-settings": f"this log is an audit's: remove audit.config, then {_AGAIN}",
    "result-missing": f"the log lacks the result: {_AGAIN}",
    "network-sut": f"use --qdl, with which LoadGen asks every server for its name: {_AGAIN}",
    "same-machine": f"run the servers and LoadGen on separate machines: {_AGAIN}",
    "token-latencies": f"set use_token_latencies and meet the latency limits: {_AGAIN}",
    # rules about accuracy runs
    "dataset-size": f"use every sample of the round's data set: {_AGAIN}",
    "accuracy-text": "write the score with the benchmark's accuracy script",
    "accuracy-counts": "write the score that follows from the counts in its line",
    "accuracy-target": "use a more accurate model, or submit to the open division",
    "accuracy-hash": _TRUNCATE,
    "accuracy-log": _TRUNCATE,
    # rules about audits
    "audit-missing": "run the audit with `submit run`, then verify and pack it",
    "audit-failed": f"the verification text names the cause: remove it, then {_AGAIN}",
    "audit-score": f"an audit must be as fast as the performance run: on an idle machine, {_AGAIN}",
    "audit-not-one": "repeat the run with the audit's audit.config",
    "audit-stale": "verify again: the text does not belong to the logs in this folder",
    # rules about power
    "power-files": "copy exactly what the PTDaemon session wrote, or remove performance/power",
    "power-session": f"client.json and server.json must come from one session: {_SESSION}",
    "power-sources": f"use an unchanged checkout of power-dev on both machines: {_SESSION}",
    "power-clock": f"synchronise both clocks with one NTP server: {_SESSION}",
    "power-hash": "copy the session's original files: changed files are not accepted",
    "power-meter": f"use a PTDaemon and an analyser that the round accepts: {_SESSION}",
    "power-ranging": f"the ranging run must be a complete run with the same settings: {_SESSION}",
    "power-log": f"remove the cause of PTDaemon's messages first, e.g. ranges and wiring: {_SESSION}",
    "power-samples": f"spl.txt must cover both runs, which have the same load: {_SESSION}",
}
"""Maps a rule to the action that resolves its findings. docs/submit.md explains each rule, and a test verifies that no
rule is missing there.
"""

SHORTENED = ("too-short", "too-few-queries", "latency-limit", "performance-samples", "audit-score")
"""Rules that a result cannot comply with if its runs are shorter than the round requires."""

OF_A_REHEARSAL = ("rehearsal", "same-machine")
"""Rules that every rehearsal may break, because its tree is marked and its servers may run on LoadGen's machine."""

OF_OTHER_DATA = ("performance-samples", "dataset-size", "accuracy-text", "accuracy-target")
"""Rules that a result cannot comply with if it does not use the round's data set."""
