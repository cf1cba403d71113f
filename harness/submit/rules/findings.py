"""Defines the findings of `submit check`: one Finding for each fault, and the RULES they refer to."""

from collections.abc import Mapping
from typing import NamedTuple


class Finding(NamedTuple):
    rule: str
    """A key of RULES."""
    file: str
    """Relative to the tree's root."""
    actual: str
    """What the tree has, in words."""
    expected: str
    """What the round requires, in words."""

    @property
    def fix(self) -> str:
        return RULES[self.rule].fix

    def lines(self) -> list[str]:
        return [
            f"{self.rule:<20}{self.file}",
            f"    actual    {self.actual}",
            f"    expected  {self.expected}",
            f"    fix       {self.fix}",
        ]

    def to_json(self) -> dict[str, str]:
        return {**self._asdict(), "fix": self.fix}


class Rule(NamedTuple):
    fix: str
    """The action that removes the finding."""
    shortened: bool = False
    """True where a rehearsal that is short or uses other data cannot keep the rule."""


_AGAIN = "repeat the run with `submit run` and pack the new run"
_PACK = "let `submit pack` write the folder, or add the file by hand"
_LAYOUT = "move it out of the tree, or give it a name of the round's layout"
_SYSTEM = "correct this file, or correct the --describe file and pack again"
_SESSION = "repeat the measurement with power-dev's client and server"
_TRUNCATE = "pack again from the raw logs, which writes the truncated log and its hash together"

RULES: Mapping[str, Rule] = {
    # the mark of a rehearsal
    "rehearsal": Rule("a rehearsal is not a submission: pack real runs without --rehearsal"),
    # the tree
    "no-results": Rule("check the path: the layout is <root>/<division>/<submitter>/results/..."),
    "unreadable": Rule("give read permission, or take a fresh copy of the tree"),
    "too-many-files": Rule("check the path: a submission has a few thousand files at most"),
    "special-file": Rule(
        "replace it with a regular file or folder: links break in other checkouts"
    ),
    "bad-name": Rule("rename it: printable ASCII without spaces and without a leading dot"),
    "pycache": Rule("delete it: Python's cache is not source code"),
    "empty-folder": Rule("delete it, or add the files that belong there"),
    "large-file": Rule("remove it: the limit is 50 MB"),
    "stray-folder": Rule(_LAYOUT),
    "stray-file": Rule(_LAYOUT),
    "energy-sidecar": Rule("remove it: MLPerf Power accepts only PTDaemon sessions"),
    "missing-file": Rule(_PACK),
    "empty-file": Rule(_PACK),
    "missing-folder": Rule(_PACK),
    "bad-json": Rule("correct the file: it must hold one JSON object"),
    "model-mapping": Rule(
        'write {"<your folder>": "<benchmark of the round>"} into open/<submitter>/model_mapping.json'
    ),
    "unknown-benchmark": Rule("use the round's name, or map it in model_mapping.json (open only)"),
    "wrong-category": Rule("change system_type, or submit another benchmark"),
    "unknown-scenario": Rule("rename it to a scenario of the round, or move it out of results/"),
    "missing-scenarios": Rule("run the missing scenarios, or submit to the open division"),
    "unused-system": Rule("delete the description, or add its results"),
    # system description and measurements
    "system-key": Rule(_SYSTEM),
    "system-value": Rule(_SYSTEM),
    "measurements-key": Rule(_SYSTEM),
    "user-conf": Rule("correct the line: LoadGen silently ignores lines it does not understand"),
    # logs of any run
    "log-incomplete": Rule(f"the run did not end or the log was truncated: {_AGAIN}"),
    "log-mixed": Rule(f"a log must hold one run: {_AGAIN}"),
    "log-copied": Rule("two results cannot share one run: put each run's own logs into its folder"),
    "summary-differs": Rule("copy the summary and the detail log of the same run"),
    "wrong-scenario": Rule("put the logs of this scenario into its folder"),
    "wrong-mode": Rule(
        "put performance logs into performance/run_1 and accuracy logs into accuracy"
    ),
    "wrong-seed": Rule(f"install the round's LoadGen: {_AGAIN}"),
    "loadgen-errors": Rule(f"remove the cause of the errors in the log, then {_AGAIN}"),
    "invalid-result": Rule(f"the constraints in the log name the cause: remove it, then {_AGAIN}"),
    # performance
    "early-stopping": Rule(f"lower the rate or issue more queries: {_AGAIN}"),
    "too-short": Rule(f"a run lasts at least 600 s: {_AGAIN}", shortened=True),
    "run-limited": Rule(f"remove max_duration and max_query_count from user.conf: {_AGAIN}"),
    "too-few-queries": Rule(f"make the run longer: {_AGAIN}", shortened=True),
    "performance-samples": Rule(
        f"load the round's number of samples into memory: {_AGAIN}", shortened=True
    ),
    "sample-override": Rule(f"use sample counts that the data set has: {_AGAIN}"),
    "scenario-settings": Rule(
        f"remove target_latency_percentile and samples_per_query from user.conf: {_AGAIN}"
    ),
    "latency-limit": Rule(
        f"set target_latency to the round's bound or below: {_AGAIN}", shortened=True
    ),
    "audit-settings": Rule(f"this log is an audit's: remove audit.config, then {_AGAIN}"),
    "result-missing": Rule(f"the log lacks the number to be published: {_AGAIN}"),
    "network-sut": Rule("use this SUT name in the network division, and in no other"),
    "token-latencies": Rule(f"set use_token_latencies and meet the latency limits: {_AGAIN}"),
    # accuracy
    "dataset-size": Rule(f"use every sample of the round's data set: {_AGAIN}", shortened=True),
    "accuracy-text": Rule("write the score with the benchmark's accuracy script", shortened=True),
    "accuracy-target": Rule(
        "use a more accurate model, or submit to the open division", shortened=True
    ),
    "accuracy-hash": Rule(_TRUNCATE),
    "accuracy-log": Rule(_TRUNCATE),
    # audits
    "audit-missing": Rule("run the audit with `submit run`, then verify and pack it"),
    "audit-failed": Rule(f"the verification text names the cause: remove it, then {_AGAIN}"),
    "audit-score": Rule(
        f"an audit must be as fast as the performance run: on a quiet machine, {_AGAIN}",
        shortened=True,
    ),
    "audit-not-one": Rule("repeat the run with the audit's audit.config"),
    "audit-stale": Rule("verify again: the text belongs to other logs than those beside it"),
    # power
    "power-files": Rule(
        "copy exactly what the PTDaemon session wrote, or remove performance/power"
    ),
    "power-session": Rule(f"client.json and server.json must be of one session: {_SESSION}"),
    "power-sources": Rule(f"use an unchanged checkout of power-dev on both machines: {_SESSION}"),
    "power-clock": Rule(f"synchronise both clocks with one NTP server: {_SESSION}"),
    "power-hash": Rule("copy the session's original files: none may be changed afterwards"),
    "power-meter": Rule(f"use a PTDaemon and an analyser that the round accepts: {_SESSION}"),
    "power-log": Rule(
        f"remove the cause of PTDaemon's messages, ranges and wiring first: {_SESSION}"
    ),
    "power-samples": Rule(f"spl.txt must cover both runs, which have the same load: {_SESSION}"),
}
"""docs/submit.md explains each rule; a test compares the two."""
