"""What is wrong with a submission: one Finding a fault, each of one of the RULES."""

from collections.abc import Mapping
from typing import NamedTuple


class Finding(NamedTuple):
    """rule: one of RULES. file: relative to the tree's root. found and wanted: in words."""

    rule: str
    file: str
    found: str
    wanted: str

    @property
    def mend(self) -> str:
        return RULES[self.rule].mend

    def lines(self) -> list[str]:
        return [
            f"{self.rule:<20}{self.file}",
            f"    found   {self.found}",
            f"    wanted  {self.wanted}",
            f"    mend    {self.mend}",
        ]

    def to_json(self) -> dict[str, str]:
        return {**self._asdict(), "mend": self.mend}


class Rule(NamedTuple):
    """mend: what to do. shortened: a rehearsal that is short or has other data cannot keep it."""

    mend: str
    shortened: bool = False


_AGAIN = "run it again with `submit run`, and pack the new run"
_PACK = "let `submit pack` write the folder, or add it by hand"
_LAYOUT = "move it out of the tree, or name it as the round's layout does"
_SYSTEM = "correct the file, or the --describe file and pack again"
_SESSION = "measure again with power-dev's client and server"
_TRUNCATE = "pack again from the raw logs: truncation and hash are made together"

RULES: Mapping[str, Rule] = {
    # the mark
    "rehearsal": Rule(
        "nothing: a rehearsal is not a submission; pack real runs without --rehearsal"
    ),
    # the tree
    "no-results": Rule("check the path: a tree is <root>/<division>/<submitter>/results/..."),
    "unreadable": Rule("give read permission, or take a fresh copy of the tree"),
    "too-many-files": Rule("check the path: a submission has a few thousand files at most"),
    "special-file": Rule("replace it by a regular file or folder: links break in other checkouts"),
    "bad-name": Rule("rename it: no leading dot, no space, printable ASCII"),
    "pycache": Rule("delete it: it is no part of the sources"),
    "empty-folder": Rule("delete it, or put in it what belongs there"),
    "large-file": Rule("leave it out: 50 MB is the limit"),
    "stray-folder": Rule(_LAYOUT),
    "stray-file": Rule(_LAYOUT),
    "energy-sidecar": Rule("leave it out: only a PTDaemon session is MLPerf Power"),
    "missing-file": Rule(_PACK),
    "empty-file": Rule(_PACK),
    "missing-folder": Rule(_PACK),
    "bad-json": Rule("mend the file: it must be one JSON object"),
    "model-mapping": Rule(
        'write {"<your folder>": "<benchmark of the round>"} at open/<submitter>'
    ),
    "unknown-benchmark": Rule("use the round's name, or map it in model_mapping.json (open only)"),
    "wrong-category": Rule("another system_type, or another benchmark"),
    "unknown-scenario": Rule("name it as the round does; anything else goes elsewhere"),
    "missing-scenarios": Rule("run the missing scenarios, or submit to the open division"),
    "unused-system": Rule("delete the description, or add its results"),
    # system description and measurements
    "system-key": Rule(_SYSTEM),
    "system-value": Rule(_SYSTEM),
    "measurements-key": Rule(_SYSTEM),
    "user-conf": Rule("correct the line: LoadGen ignores what it does not understand, in silence"),
    # logs of any run
    "log-incomplete": Rule(f"the run did not end, or the log was cut: {_AGAIN}"),
    "log-mixed": Rule(f"one log a run: {_AGAIN}"),
    "log-copied": Rule("two results cannot be one run: put each run's own logs in its folder"),
    "summary-differs": Rule("both logs must be of one run: copy them together"),
    "wrong-scenario": Rule("put the logs of the scenario in its folder"),
    "wrong-mode": Rule("performance logs into performance/run_1, accuracy logs into accuracy"),
    "wrong-seed": Rule(f"install the round's LoadGen: {_AGAIN}"),
    "loadgen-errors": Rule(f"read the log's errors, mend their cause, and {_AGAIN}"),
    "invalid-result": Rule(f"the log's constraints say why: mend it and {_AGAIN}"),
    # performance
    "early-stopping": Rule(f"a lower rate, or more queries: {_AGAIN}"),
    "too-short": Rule(f"600 s are the least: {_AGAIN}", shortened=True),
    "run-limited": Rule(f"no max_duration and no max_query_count in user.conf: {_AGAIN}"),
    "too-few-queries": Rule(f"a longer run: {_AGAIN}", shortened=True),
    "performance-samples": Rule(f"hold the round's number of samples: {_AGAIN}", shortened=True),
    "sample-override": Rule(f"counts must be of samples that are there: {_AGAIN}"),
    "scenario-settings": Rule(
        f"remove target_latency_percentile and samples_per_query from user.conf: {_AGAIN}"
    ),
    "latency-limit": Rule(f"target_latency at most the round's: {_AGAIN}", shortened=True),
    "audit-settings": Rule(f"this is an audit's log: run without audit.config: {_AGAIN}"),
    "result-missing": Rule(f"the published number is not in the log: {_AGAIN}"),
    "network-sut": Rule("only the network division runs over a network, and names its SUT so"),
    "token-latencies": Rule(f"set use_token_latencies, keep to the limits: {_AGAIN}"),
    # accuracy
    "dataset-size": Rule(f"every sample of the round's data set: {_AGAIN}", shortened=True),
    "accuracy-text": Rule("write the score with the benchmark's accuracy script", shortened=True),
    "accuracy-target": Rule("a more accurate model, or the open division", shortened=True),
    "accuracy-hash": Rule(_TRUNCATE),
    "accuracy-log": Rule(_TRUNCATE),
    # audits
    "audit-missing": Rule("run the audit with `submit run`, verify and pack it"),
    "audit-failed": Rule(f"the text says why the audit failed: mend it and {_AGAIN}"),
    "audit-score": Rule(
        f"an audit must be as fast as the performance run: {_AGAIN}, on a quiet machine",
        shortened=True,
    ),
    "audit-not-one": Rule("the log must be of a run with the audit's audit.config: run the audit"),
    "audit-stale": Rule("verify again: the text is of other logs than those beside it"),
    # power
    "power-files": Rule(
        "copy exactly what the PTDaemon session wrote, or remove performance/power"
    ),
    "power-session": Rule(f"client.json and server.json must be of one session: {_SESSION}"),
    "power-sources": Rule(f"use an unchanged checkout of power-dev on both machines: {_SESSION}"),
    "power-clock": Rule(f"let both clocks follow one NTP server, change nothing else: {_SESSION}"),
    "power-hash": Rule("copy the session's files as they were: none may be changed afterwards"),
    "power-meter": Rule(f"the round's PTDaemon and analysers only: {_SESSION}"),
    "power-log": Rule(f"mend what PTDaemon complains of, its ranges and wiring first: {_SESSION}"),
    "power-samples": Rule(f"spl.txt must cover the run, under the same load twice: {_SESSION}"),
}
"""docs/submit.md explains each, and a test keeps the two the same."""
