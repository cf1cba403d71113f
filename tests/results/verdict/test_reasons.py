"""VALID means that no reason was found: a golden run has none, and each fault causes its own reason."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.core import registry
from harness.core.clock import ClockWatch
from harness.core.codes import Reason
from harness.core.config.parse import parse_slo
from harness.core.stats import queries_to_settle
from harness.core.units import NS_PER_MS, NS_PER_S
from harness.loadgen.logs import DetailLog
from harness.models.manifest.schema import Accuracy
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.verdict import reasons
from harness.types import Score
from tests.builders.support import ENDED, SCENARIOS, evidence, golden_completions, golden_log, plan

each_scenario = pytest.mark.parametrize("scenario", SCENARIOS)


def accuracy_evidence(scenario: str) -> Evidence:
    """Returns the golden accuracy run; its journal had one row per sample and is not stored."""
    columns = {"order": np.arange(20), "failed": np.zeros(20, np.int64)}
    return evidence(
        scenario,
        plan=plan(scenario, accuracy=True, query_count=20),
        log=golden_log(scenario, "accuracy"),
        done=Completions(columns, 20, answered_once=True),
    )


@each_scenario
def test_a_golden_run_has_no_reason(scenario: str) -> None:
    assert list(reasons.performance(evidence(scenario))) == []
    assert list(reasons.any_run(accuracy_evidence(scenario))) == []


def logged(**values: Any) -> Callable[[Evidence], Evidence]:
    return lambda run: replace(run, log=replace(run.log, values={**run.log.values, **values}))


def cut_before_scenario(run: Evidence) -> Evidence:
    gone = ("effective_scenario", "effective_test_mode")
    values = {key: value for key, value in run.log.values.items() if key not in gone}
    return replace(run, log=replace(run.log, values=values, complete=False))


def log(**fields: Any) -> Callable[[Evidence], Evidence]:
    return lambda run: replace(run, log=replace(run.log, **fields))


def ended(**values: Any) -> Callable[[Evidence], Evidence]:
    return lambda run: replace(run, ended={**ENDED, **values})


def planned(**values: Any) -> Callable[[Evidence], Evidence]:
    return lambda run: replace(run, plan=replace(run.plan, **values))


def answered(count: int) -> Callable[[Evidence], Evidence]:
    """Keeps answers in the journal only for the first `count` samples."""

    def change(run: Evidence) -> Evidence:
        assert run.done is not None
        columns = {name: column[:count] for name, column in run.done.columns.items()}
        return replace(run, done=replace(run.done, columns=columns, answered_once=False))

    return change


def failing(count: int) -> Callable[[Evidence], Evidence]:
    """Marks the last `count` samples of the journal as failed, although the process had not counted them."""

    def change(run: Evidence) -> Evidence:
        assert run.done is not None
        failed = np.arange(len(run.done)) >= len(run.done) - count
        columns = {**run.done.columns, "failed": failed.astype(np.uint16)}
        return replace(run, done=replace(run.done, columns=columns))

    return change


def requests_failing(count: int) -> Callable[[Evidence], Evidence]:
    """Does the same as `failing`, for a run whose samples were sent to a server."""

    def change(run: Evidence) -> Evidence:
        assert run.done is not None
        columns = {**run.done.columns, "sent_ns": run.done.columns["scheduled_ns"]}
        return failing(count)(replace(run, done=replace(run.done, columns=columns)))

    return change


def stepped(ns: int) -> Callable[[Evidence], Evidence]:
    return lambda run: replace(run, clock=ClockWatch(largest_step_ns=ns))


def moved(ns: int, wall_s: float) -> Callable[[Evidence], Evidence]:
    used = {**ENDED["used"], "wall_offset_ns": ns, "wall_s": wall_s}
    return ended(used=used)


SETTLED = queries_to_settle(2, 700, 0.99)
assert SETTLED is not None
SERVER_REASONS: list[tuple[str, Callable[[Evidence], Evidence], str, str]] = [
    ("a batch failed", ended(failed_samples=8, first_failure="Traceback:\n  x\nValueError: y\n"), "batch-failed", "performance run: 8 of 700 samples failed: ValueError: y"),
    ("a batch failed by the journal alone", failing(8), "batch-failed", "performance run: 8 samples failed"),
    # Bug: if a signal stopped a run with a hung server, the reason blamed the model.
    ("requests failed by the journal alone", requests_failing(8), "requests-failed", "performance run: 8 samples failed"),
    ("the process never said how it ended", lambda run: replace(run, ended=None), "died", "performance run: the measured process ended without sending its last message"),
    ("no log", lambda run: replace(run, log=DetailLog()), "log-missing", "performance run: LoadGen wrote no detail log: make the run's folder writable"),
    ("a cut log", log(complete=False), "log-incomplete", "performance run: LoadGen's detail log is cut off, or LoadGen did not write it"),
    # Bug: the second reason was "the log is of None None".
    ("a log cut before its scenario", cut_before_scenario, "log-incomplete", "performance run: LoadGen's detail log is cut off, or LoadGen did not write it"),
    ("two runs in one log", log(repeated=2), "log-mixed", "performance run: the detail log contains 2 runs"),
    ("error lines although LoadGen says VALID", log(errors=["error_runtime: twice", "error_runtime: thrice"]), "loadgen-errors", "performance run: LoadGen reported 2 errors: error_runtime: twice"),
    ("errors counted without a line", logged(num_errors=3), "loadgen-errors", "performance run: LoadGen reported 3 errors"),
    ("another scenario's log", logged(effective_scenario="Offline"), "wrong-run", "performance run: the log belongs to Offline PerformanceOnly, not to Server PerformanceOnly"),
    ("another mode's log", logged(effective_test_mode="SubmissionRun"), "wrong-run", "performance run: the log belongs to Server SubmissionRun, not to Server PerformanceOnly"),
    *[
        (
            f"another {key} seed",
            logged(**{f"effective_{key}_rng_seed": 1}),
            "wrong-seed",
            f"performance run: the {key} seed in the log differs from the plan's seed",
        )
        for key in ("qsl", "sample_index", "schedule")
    ],
    ("no journal", lambda run: replace(run, done=None), "journal-missing", "performance run: the journal is empty"),
    ("an answer is missing", answered(699), "samples-lost", "performance run: 700 samples were issued, but 699 answers were recorded: each sample must be answered exactly once"),
    ("LoadGen counted other samples", logged(result_query_count=705), "samples-lost", "performance run: LoadGen counted 705 samples, but the journal counted 700"),
    ("the supervisor saw the clock jump", stepped(-2 * NS_PER_S), "clock-jumped", "performance run: the wall clock was stepped by -2.00 s (limit 1.00 ms); LoadGen's latencies are wrong: run again"),
    ("the measured process saw the clock jump", moved(2 * NS_PER_S, wall_s=10.0), "clock-jumped", "performance run: the wall clock was stepped by 2.00 s (limit 1.00 ms); LoadGen's latencies are wrong: run again"),
    ("another number of samples held", logged(effective_performance_sample_count=1024), "wrong-sample-count", "LoadGen held 1024 samples, but the plan has 20"),
    ("fewer queries than planned", planned(query_count=800), "too-few-queries", "LoadGen counted 700 queries, but the plan has 800"),
    ("LoadGen has another objection", logged(result_validity="INVALID", result_min_duration_met=False), "loadgen-invalid", "LoadGen reports INVALID: not satisfied: min duration"),
    ("LoadGen gives no reason", logged(result_validity="INVALID"), "loadgen-invalid", "LoadGen reports INVALID: the log names no constraint"),
    (
        "too many late queries to be sure",
        logged(early_stopping_met=False, result_validity="INVALID", result_overlatency_query_count=2),
        "early-stopping",
        ("2 of 700 queries took longer than 50.0 ms: too few queries to prove p99: "
        f"{SETTLED:,}, {SETTLED / 2000:,.0f} s at 2,000/s, would be enough"),
    ),
    (
        "more late queries than the percentile allows",
        logged(
            early_stopping_met=False,
            result_perf_constraints_met=False,
            result_validity="INVALID",
            result_overlatency_query_count=8,
        ),
        "slo-missed",
        "8 of 700 queries took longer than 50.0 ms, but p99 allows at most 6",
    ),
    ("an official run that was told to be short", planned(model_key="resnet50"), "too-short", "min_duration was 1 ms, but the rules require 600000"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [row[1:] for row in SERVER_REASONS],
    ids=[row[0] for row in SERVER_REASONS],
)
def test_one_thing_wrong_is_one_reason(
    change: Callable[[Evidence], Evidence], code: str, text: str
) -> None:
    found = list(reasons.performance(change(evidence("server"))))
    assert found == [Reason(code, text)]


def test_advised_number_of_queries_and_their_seconds_are_consistent() -> None:
    late = {"result_overlatency_query_count": 3, "effective_target_qps": 10}
    change = logged(early_stopping_met=False, result_validity="INVALID", **late)
    (reason,) = reasons.performance(change(evidence("server")))
    numbers = re.search(r": ([\d,]+), ([\d,]+) s at 10.0/s, would be enough", reason.text)
    assert numbers is not None
    queries, seconds = (int(n.replace(",", "")) for n in numbers.groups())
    assert (
        queries >= 1100
    )  # early stopping passes if at most ceil(3 / 700 * n) of n queries are late
    assert seconds == round(queries / 10)


@pytest.mark.parametrize(("late", "is_told"), [(700, False), (701, True)])
def test_a_rate_is_not_blamed_for_queries_that_failed(late: int, is_told: bool) -> None:
    """Bug: after a server had died, the message `40 of 40 queries took longer` advised a lower rate."""
    run = evidence("server")
    assert run.done is not None
    columns = {**run.done.columns, "failed": np.ones(700, np.uint16)}
    columns["completed_ns"] = columns["completed_ns"] + 100 * NS_PER_MS
    ended = {**ENDED, "failed_samples": 700}
    run = replace(run, done=replace(run.done, columns=columns), ended=ended)
    values = {"early_stopping_met": False, "result_validity": "INVALID"}
    change = logged(**values, result_overlatency_query_count=late)
    codes = [one.code for one in reasons.performance(change(run))]
    assert ("slo-missed" in codes) is is_told


def test_dead_process_is_the_only_reason_and_its_log_is_not_required() -> None:
    died = Reason("died", "the measured process was killed by SIGSEGV in the run")
    run = evidence("server", failure=died, log=DetailLog(), ended=None)
    assert list(reasons.performance(run)) == [died]


def test_slewing_alone_is_not_a_clock_step() -> None:
    """In ten minutes, the kernel's 500 ppm move the clock by 300 ms without a step."""
    assert list(reasons.performance(moved(300 * NS_PER_MS, wall_s=600.0)(evidence("server")))) == []


def test_accuracy_run_is_judged_by_the_same_rules_and_named() -> None:
    run = logged(effective_qsl_rng_seed=1)(accuracy_evidence("server"))
    text = "accuracy run: the qsl seed in the log differs from the plan's seed"
    assert list(reasons.any_run(run)) == [Reason("wrong-seed", text)]


def test_performance_log_is_refused_as_an_accuracy_log() -> None:
    run = replace(accuracy_evidence("server"), log=golden_log("server"))
    assert "wrong-run" in [r.code for r in reasons.any_run(run)]


def test_multi_stream_counts_samples_not_queries() -> None:
    done = replace(golden_completions("multi-stream"), issued=662)
    (reason,) = reasons.performance(evidence("multi-stream", done=done))
    assert (
        reason.text == "performance run: LoadGen counted 5,296 samples, but the journal counted 662"
    )


def test_offline_is_one_query_of_any_number_of_samples() -> None:
    assert golden_log("offline").get("result_query_count") == 1
    assert list(reasons.performance(evidence("offline"))) == []


@pytest.mark.parametrize(
    ("scenario", "key", "percentile", "name"),
    [
        ("single-stream", "early_stopping_latency_ss", 90, "early-stopping estimate of the p90 latency"),
        ("multi-stream", "early_stopping_latency_ms", 99, "early-stopping estimate of the p99 latency"),
        ("offline", "result_99.00_percentile_latency_ns", 99, "p99 latency"),
        ("offline", "result_99.90_percentile_latency_ns", 99.5, "p99.9 latency"),
        ("offline", "result_max_latency_ns", 99.99, "largest latency"),
    ],
)  # fmt: skip
def test_a_given_slo_is_judged_on_the_key_of_the_scenario(
    scenario: str, key: str, percentile: float, name: str
) -> None:
    run = evidence(scenario)
    made = registry.load("scenario", scenario)
    value = run.log.get(key)
    met = parse_slo(f"p{percentile}={value}ns")
    missed = parse_slo(f"p{percentile}={value - 1}ns")
    assert list(reasons.slo(made, run, met)) == []
    assert list(reasons.slo(made, run, None)) == []
    (reason,) = reasons.slo(made, run, missed)
    assert reason.code == "slo-missed"
    assert re.fullmatch(
        rf"the {re.escape(name)} is .+, but the SLO {re.escape(str(missed))} allows .+", reason.text
    )


def test_servers_slo_is_judged_by_loadgen_alone() -> None:
    made = registry.load("scenario", "server")
    assert list(reasons.slo(made, evidence("server"), parse_slo("p99=1ns"))) == []


def _score(value: float) -> Score:
    return Score(metric="top1", value=value, unit="%", samples=20, line="")


@pytest.mark.parametrize(
    ("value", "target", "wanted"),
    [
        (98.5, Accuracy(metric="top1", target=98.5), []),
        (10.0, None, []),
        (10.0, Accuracy(metric="f1", target=98.5), []),
        (98.4999, Accuracy(metric="top1", target=98.5), ["accuracy top1 is 98.500 %, but the manifest's target is 98.5 %"]),
    ],
)  # fmt: skip
def test_a_score_below_the_manifests_target_is_a_reason(
    value: float, target: Accuracy | None, wanted: list[str]
) -> None:
    found = list(reasons.score(_score(value), target))
    assert [r.text for r in found] == wanted
    assert {r.code for r in found} <= {"accuracy-below-target"}


def test_every_reason_has_one_line() -> None:
    for _, change, *_ in SERVER_REASONS:
        for reason in reasons.performance(change(evidence("server"))):
            assert "\n" not in reason.text


def test_slos_of_token_times_alone_are_judged_once() -> None:
    """Bug: with --concurrency, the harness's log repeated a missed SLO on first tokens as a missed SLO on the latency."""
    unsure = {"early_stopping_met": False, "result_validity": "INVALID"}
    run = logged(**unsure, effective_target_latency_ns=None)(evidence("server"))
    missed = Reason("early-stopping", "60 first tokens are too few to prove ttft:p99")
    assert [*reasons.performance(run, [missed])] == [missed]
    (alone,) = reasons.performance(run)
    assert alone.code == "early-stopping"
