"""Defines the rules for checking MLPerf Endpoints, and the action that resolves each rule's findings."""

from collections.abc import Mapping

from harness.submit.rules import findings


class Finding(findings.Finding):
    """A fault in a tree. The field `rule` is a key of RULES."""

    __slots__ = ()

    @property
    def fix(self) -> str:
        return RULES[self.rule]


_AGAIN = "repeat the point with `endpoints run` and pack again"
_PACK = "let `endpoints pack` write the folder, or add the file by hand"
_POINT = "correct point.yaml, or correct the request and pack again"
_SYSTEM = "correct system_desc.json, or correct the --describe file and pack again"
_UNCHANGED = "copy result_summary.json and config.yaml of one run of the official client, unchanged"

RULES: Mapping[str, str] = {
    "rehearsal": "a rehearsal is not a submission: plan without --rehearsal and repeat the runs",
    # rules about the layout
    "no-results": "check the path: the layout is <organisation>/<submission>/results/<system>/<model>/r<C>/",
    "too-many-files": "check the path: a submission has a few hundred files at most",
    "unreadable": "grant read permission, or make a fresh copy of the tree",
    "missing-folder": _PACK,
    "missing-file": _PACK,
    "missing-readme": "write README.md: how to build the system and to reproduce a point",
    "empty-docs": "put the documents of the submission there: topology, hops and baseline latency",
    "special-file": "replace it with a regular file or folder: links break in other checkouts",
    "bad-name": "rename it: printable ASCII without spaces and without a leading dot",
    "stray-file": "move it out of the tree; server files belong in server_configs/",
    "private-file": "remove it: it lists users, processes or requests",
    "large-file": "remove it: the limit is 50 MB",
    "bad-file": "correct the file: it must be one mapping in JSON or YAML",
    "point-folder": "name the folder r<concurrency>, as point.yaml has it",
    "no-points": "remove the folder, or add its points",
    "model-name": "use the benchmark's name from the rules, for the folder and in point.yaml",
    "shared-path": "name an existing folder below the root, without '..'",
    # rules about point.yaml
    "point-key": _POINT,
    "unknown-key": "remove the key, or correct its spelling: a reviewer reads it, but no rule does",
    "division": "write the same division everywhere: standardized, serviced or rdi",
    "cohort": "write the cohort as YYYY-MM-C0 or YYYY-MM-C1",
    "seed-set": "use a seed set whose window includes the cohort",
    "seeds": f"use the three seeds of the seed set: {_AGAIN}",
    "dataset": "name the benchmark's performance data set",
    "load-pattern": f"use a fixed concurrency: {_AGAIN}",
    "min-duration": f"set min_duration_ms to the region's minimum: {_AGAIN}",
    "dataset-type": "write Accuracy, Performance, or Accuracy + Performance",
    "warm-up": "describe the warm-up, or write zeros for none, and keep its logs",
    "steady-state": "copy the block that `endpoints witness` computes from the events",
    "region": "write the region's name, or remove the key",
    "drafter": "use an approved drafter, or no speculative decoding",
    # rules about the curve
    "points-differ": "all points of a curve share these values: correct the point that differs",
    "c-max": "declare the same C_max, above 32, in every file",
    "c-min": "declare the same submitted point as c_min_override in every system_desc.json, or in none",
    "empty-region": "choose a larger C_max, or a lower C_min: a region without a point cannot be covered",
    "point-count": "add points, or remove some",
    "coverage": "add a point in this region",
    "out-of-range": "remove the point, or declare a larger C_max",
    "offline": "elect the point at C_max, or add a dedicated point",
    "accuracy-coverage": "keep one accuracy result in each region and one at the Offline point, and remove all others",
    "offline-slower": f"Offline must be at least as fast as C_max: {_AGAIN}",
    "utilisation": "divide the point's tokens/s by the largest of the curve",
    # rules about results
    "result-key": _UNCHANGED,
    "numbers-disagree": _UNCHANGED,
    "stored-metric": "remove the stored metric: it follows from the other numbers",
    "not-complete": f"the run must end by itself: {_AGAIN}",
    "failed-requests": f"remove the cause of the failures: {_AGAIN}",
    "counts": f"completed and failed requests must add up to the issued ones: {_AGAIN}",
    "too-few-queries": f"complete at least one pass over the data set: {_AGAIN}",
    "whole-passes": f"issue the data set a whole number of times: {_AGAIN}",
    "too-short": f"issue more passes: {_AGAIN}",
    "in-flight": f"the mean number of queries in flight must equal the concurrency: {_AGAIN}",
    "token-times": f"tokens, TTFT and TPOT must add up to the latency: {_AGAIN}",
    "copied-result": f"every point needs a separate run: {_AGAIN}",
    "run-differs": _UNCHANGED,
    "config-differs": _UNCHANGED,
    # rules about accuracy
    "accuracy-missing": "the score has no value for this metric: score the answers again",
    "accuracy-target": "use a more accurate model",
    "accuracy-samples": "score the whole data set",
    "accuracy-set": "score the benchmark's accuracy data set",
    # rules about the system and its power
    "system-key": _SYSTEM,
    "system-value": _SYSTEM,
    "systems-differ": _SYSTEM,
    "engagement": "use as many replicas as fit, or declare dp_shortfall with its reason",
    "power": "correct system_power.json, or the section `power` of the --describe file, and pack again",
}
"""Maps a rule to the action that resolves its findings. docs/endpoints.md explains each rule, and a test verifies that
no rule is missing there.
"""

OF_A_REHEARSAL = frozenset(
    {
        "rehearsal",
        "model-name",
        "too-short",
        "min-duration",
        "steady-state",
        "too-few-queries",
        "accuracy-set",
        "accuracy-samples",
        "accuracy-target",
    }
)
"""Rules that a rehearsal may break, because a rehearsal may be short and may use another model and other data."""
