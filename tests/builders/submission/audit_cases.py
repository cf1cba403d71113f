"""Audits that pass and audits that fail; our verification and MLCommons' scripts get the same logs.

Each case is a pair of runs made from LoadGen's golden logs. golden/audits.json stores the verdicts of compliance/TEST01
and compliance/TEST04 of mlcommons/inference (b66003e) on each pair; `benchmarks/official_check.py --record` writes this
file.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.loadgen.logs import ACCURACY, DETAIL, SUMMARY
from harness.submit.rules.tree.verify import TEST01, TEST04
from tests.builders.submission.trees import (
    AUDIT,
    OF_SCENARIO,
    PERFORMANCE,
    SCENARIOS,
    changed_log,
    write_summary,
)
from tests.builders.support import GOLDEN

_RESULTS = {  # maps a scenario to a key of the detail log and a line of the summary
    "SingleStream": (
        "early_stopping_latency_ss",
        r"(Early stopping 90\.0th percentile estimate: )",
    ),
    "MultiStream": ("early_stopping_latency_ms", r"(Early stopping 99\.0th percentile estimate: )"),
    "Server": ("result_completed_samples_per_sec", r"(Completed samples per second\s*: )"),
    "Offline": ("result_samples_per_second", r"(Samples per second: )"),
}
RIGHT, WRONG = "0800000000000000", "0700000000000000"


class Case(NamedTuple):
    """reference and test: the published number of each run. answers: the audit's answers, by sample."""

    audit: str
    scenario: str
    reference: float
    test: float
    validity: str = "VALID"
    bound_ns: int = 15_000_000
    answers: Mapping[int, str] = dict.fromkeys(range(50), RIGHT)
    accuracy: Mapping[int, str] = dict.fromkeys(range(200), RIGHT)


def _both(audit: str) -> dict[str, Case]:
    """Returns a case just inside and a case just outside each margin, for each scenario."""
    cases = {}
    for scenario, usual in (
        ("Server", 2000.0),
        ("Offline", 90000.0),
        ("SingleStream", 5e6),
        ("MultiStream", 8e6),
    ):
        for factor in (0.75, 0.81, 0.85, 0.89, 0.91, 0.99, 1.0, 1.09, 1.11, 1.19, 1.21, 1.3):
            cases[f"{audit} {scenario} x{factor}"] = Case(audit, scenario, usual, usual * factor)
    for factor in (0.79, 0.81, 1.19, 1.21):
        fast = Case(audit, "SingleStream", 150_000, 150_000 * factor)
        cases[f"{audit} fast SingleStream x{factor}"] = fast
        many = Case(audit, "MultiStream", 1_000_000, 1_000_000 * factor)
        cases[f"{audit} fast MultiStream x{factor}"] = many
    cases[f"{audit} INVALID"] = Case(audit, "Server", 2000, 2000, "INVALID")
    return cases


CASES = {
    **_both(TEST01),
    **_both(TEST04),
    "TEST01 another bound": Case(TEST01, "Server", 2000, 2000, bound_ns=14_000_000),
    "TEST01 one answer differs": Case(
        TEST01, "Server", 2000, 2000, answers={**dict.fromkeys(range(50), RIGHT), 7: WRONG}
    ),
    "TEST01 empty answer": Case(TEST01, "Server", 2000, 2000, answers={1: RIGHT, 2: ""}),
    "TEST01 both empty": Case(
        TEST01, "Server", 2000, 2000, answers={1: RIGHT, 2: ""}, accuracy={1: RIGHT, 2: ""}
    ),
    "TEST01 no answer": Case(TEST01, "Server", 2000, 2000, answers={}),
    "TEST01 other samples": Case(TEST01, "Server", 2000, 2000, answers={900: RIGHT}),
    "TEST01 second element differs": Case(
        TEST01, "Server", 2000, 2000, answers={1: RIGHT + WRONG}, accuracy={1: RIGHT + RIGHT}
    ),
}


def build(case: Case, folder: Path) -> tuple[Path, Path, Path]:
    """Writes the folders of the performance run, the accuracy run and the audit run, and returns their paths."""
    performance, accuracy, test = (folder / n for n in ("performance", "accuracy", "test"))
    _run(performance, case, case.reference, {})
    changes = {**AUDIT[case.audit], "result_validity": case.validity}
    if case.scenario == "Server":
        changes["effective_target_latency_ns"] = case.bound_ns
    _run(test, case, case.test, changes)
    accuracy.mkdir()
    (accuracy / ACCURACY).write_text(_answers(case.accuracy))
    (test / ACCURACY).write_text(_answers(case.answers))
    return performance, accuracy, test


def _run(folder: Path, case: Case, score: float, changes: Mapping[str, Any]) -> None:
    golden = GOLDEN / SCENARIOS[case.scenario] / "performance"
    folder.mkdir(parents=True)
    key, line = _RESULTS[case.scenario]
    streams = case.scenario.endswith("Stream")
    named = {
        **PERFORMANCE,
        **OF_SCENARIO[case.scenario],
        **changes,
        key: int(score) if streams else score,
    }
    (folder / DETAIL).write_text(changed_log((golden / DETAIL).read_text(), named))
    written = f"{int(score)}" if streams else f"{score:.2f}"
    summary = re.sub(rf"{line}.*", rf"\g<1>{written}", (golden / SUMMARY).read_text())
    write_summary(folder, summary)


def _answers(answers: Mapping[int, str]) -> str:
    rows = (
        f'{{ "seq_id" : {i}, "qsl_idx" : {sample}, "data" : "{data}" }}'
        for i, (sample, data) in enumerate(answers.items())
    )
    return "[\n" + ",\n".join(rows) + "\n]\n"
