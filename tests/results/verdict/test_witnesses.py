"""The harness compares each number with a second file, and thus finds every edit of LoadGen's log or the journal."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from harness.core.codes import Reason
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.verdict import witnesses
from harness.results.verdict.reasons import any_run
from tests.builders.support import SCENARIOS, evidence


def reasons(run: Evidence, max_batch: int = 64) -> list[Reason]:
    return [
        *witnesses.settings_reasons(run),
        *witnesses.log_reasons(run),
        *witnesses.journal_reasons(run, max_batch),
    ]


def logged(scenario: str, **values: Any) -> Evidence:
    """Returns the golden run with changed values in LoadGen's log. `*2` as a value doubles the old value."""
    run = evidence(scenario)
    log = copy.deepcopy(run.log)
    for key, value in values.items():
        found = log.values[key]
        log.values[key] = found * float(value[1:]) if isinstance(value, str) else value
    return replace(run, log=log)


def journal(scenario: str, **columns: Any) -> Evidence:
    """Returns the golden run with changed columns in the journal, computed from the true columns."""
    run = evidence(scenario)
    assert run.done is not None
    true = dict(run.done.columns)
    changed = {name: change(true) for name, change in columns.items()}
    return replace(run, done=Completions({**true, **changed}, run.done.issued, True))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_an_honest_run_contradicts_nothing(scenario: str) -> None:
    assert reasons(evidence(scenario)) == []


SETTINGS = [
    ("server", {"effective_target_latency_ns": 10**12}),
    ("server", {"effective_target_latency_percentile": 0.5}),
    ("server", {"effective_target_qps": "*0.9"}),
    ("server", {"effective_min_query_count": 5}),
    ("single-stream", {"effective_max_duration_ms": 100}),
    ("single-stream", {"effective_max_query_count": 100}),
    ("multi-stream", {"effective_samples_per_query": 4}),
    ("offline", {"effective_min_sample_count": 5}),
    ("offline", {"effective_performance_issue_same": True}),
    ("offline", {"effective_performance_issue_unique": True}),
    ("offline", {"effective_sample_concatenate_permutation": True}),
    ("offline", {"effective_accuracy_log_sampling_target": 3}),
    ("offline", {"effective_accuracy_log_rng_seed": 3}),
    ("offline", {"effective_accuracy_log_probability": 1}),
    ("offline", {"qsl_reported_total_count": 3}),
    ("offline", {"qsl_reported_performance_count": 3}),
]


@pytest.mark.parametrize(("scenario", "values"), SETTINGS, ids=str)
def test_a_setting_that_is_not_the_plans_is_named(scenario: str, values: dict[str, Any]) -> None:
    """Bug: with p99=5ms, a run with a p99 of 37.9 ms was VALID, because LoadGen had received a different bound."""
    found = [
        reason for reason in reasons(logged(scenario, **values)) if reason.code == "wrong-settings"
    ]
    (key,) = values
    assert len(found) == 1
    assert f"{key} is " in found[0].text


def test_a_benchmark_that_issues_each_sample_equally_often_is_as_planned() -> None:
    """Bug: every official run of 3d-unet was INVALID because of a setting that its rules require and a padded query."""
    key, run = "effective_sample_concatenate_permutation", evidence("offline")
    planned = replace(run, plan=replace(run.plan, equal_issue=True))
    (missing,) = witnesses.settings_reasons(planned)
    assert f"{key} is False, but the plan has True" in missing.text
    assert run.done is not None
    values = {key: True, "generated_samples_per_query": run.done.issued}
    values["effective_samples_per_query"] = run.done.issued - 12
    log = copy.deepcopy(run.log)
    log.values.update(values)
    assert reasons(replace(planned, log=log)) == []
    assert list(any_run(replace(planned, log=log))) == []
    assert [r.code for r in any_run(replace(run, log=log))] == ["samples-lost"]


LOGS = [
    ("server", {"result_completed_samples_per_sec": "*2"}, "the journal's rate"),
    ("server", {"result_completed_samples_per_sec": "*0.5"}, "the journal's rate"),
    ("offline", {"result_samples_per_second": "*2"}, "the longest latency"),
    ("offline", {"result_samples_per_second": "*2", "result_max_latency_ns": "*0.5"}, "the journal's"),
    ("server", {"result_99.00_percentile_latency_ns": "*0.5"}, "is above"),
    ("server", {"result_50.00_percentile_latency_ns": "*0.5"}, "cannot reach LoadGen"),
    ("server", {"result_mean_latency_ns": 1}, "lies outside"),
    ("server", {"result_max_latency_ns": 1}, "is above"),
    ("server", {"result_min_latency_ns": "*1000"}, "is above"),
    ("server", {"result_min_duration_met": False}, "although result_min_duration_met"),
    ("server", {"early_stopping_met": False}, "early_stopping_met"),
    ("server", {"result_perf_constraints_met": False}, "although result_perf"),
    ("server", {"result_overlatency_query_count": 10**6}, "queries were late"),
    ("server", {"result_overlatency_query_count": 300}, "early_stopping_met is True"),
    ("single-stream", {"early_stopping_latency_ss": 1}, "estimate"),
    ("multi-stream", {"early_stopping_latency_ms": 1}, "estimate"),
    ("multi-stream", {"result_99.00_percentile_per_query_latency_ns": 1}, "is above"),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "values", "text"), LOGS, ids=str)
def test_a_result_that_contradicts_another_is_named(
    scenario: str, values: dict[str, Any], text: str
) -> None:
    """Bug: a run was VALID although the rate in its detail log was 100 times too high."""
    found = [
        reason
        for reason in reasons(logged(scenario, **values))
        if reason.code == "numbers-disagree"
    ]
    assert any(text in reason.text for reason in found), found


def test_fewer_late_queries_than_in_the_journal_are_named() -> None:
    """The bound in the plan and the log is the journal's median, but LoadGen's log counts no late query."""
    run = logged("server")
    assert run.done is not None
    bound_ns = int(np.median(run.done.latency_ns))
    run.log.values["effective_target_latency_ns"] = bound_ns
    run = replace(run, plan=replace(run.plan, latency_bound_ns=bound_ns))
    texts = [reason.text for reason in reasons(run)]
    assert any("count of late queries is 0, but the journal has at least" in text for text in texts)
    assert any("result_perf_constraints_met is true" in text for text in texts)


def test_slower_clocks_of_loadgen_alone_are_found() -> None:
    """Every latency in LoadGen's log is half of the journal's latency, and a busy machine cannot cause this difference."""
    run = logged("single-stream")
    for key, value in run.log.values.items():
        if key.endswith("latency_ns") and key.startswith("result_"):
            run.log.values[key] = value // 2
    assert {reason.code for reason in reasons(run)} >= {"numbers-disagree"}


def test_pause_before_the_fastest_answer_is_not_a_reason() -> None:
    """Bug: a run on a busy machine was INVALID. LoadGen had stamped the fastest answer 50 us later than the journal, so
    the start of the schedule, computed from the journal, was 50 us too early.
    """
    pause_ns = 5_000_000
    run = journal("offline", scheduled_ns=lambda c: c["scheduled_ns"] - pause_ns)
    assert [reason.text for reason in reasons(run) if "cannot reach" in reason.text] == []
    run = journal("offline", completed_ns=lambda c: c["completed_ns"] + pause_ns)
    assert any("cannot reach" in reason.text for reason in reasons(run))


JOURNALS = [
    ("single-stream", {"completed_ns": lambda c: c["inferred_ns"] - 1}, "were completed before they were postprocessed"),
    ("single-stream", {"taken_ns": lambda c: c["entry_ns"] - 5}, "were taken before they were entry"),
    ("offline", {"index": lambda c: c["index"] + 10**6}, "dataset indices"),
    ("offline", {"index": lambda c: c["index"] - 10**6}, "dataset indices"),
    ("server", {"batch_size": lambda c: c["batch_size"] + 1}, "number of rows"),
    ("server", {"batch_size": lambda c: c["batch_size"] * 1000}, "the largest allowed"),
    ("server", {"taken_ns": lambda c: c["taken_ns"] * 0 + c["entry_ns"].max()}, "before"),
]  # fmt: skip


@pytest.mark.parametrize(("scenario", "columns", "text"), JOURNALS)
def test_rows_that_no_run_leaves_are_named(
    scenario: str, columns: dict[str, Any], text: str
) -> None:
    """Bug: the table of a VALID run contained `infer 1,027 %, complete -969 %`."""
    found = [r for r in reasons(journal(scenario, **columns)) if r.code == "journal-impossible"]
    assert any(text in reason.text for reason in found), found


def looks(scenario: str, times: float, pause_ns: int = 0) -> Evidence:
    """Returns the golden run, observed 20 times by a supervisor whose clock runs `times` times as fast. Each
    observation sees the answers up to its time, and one observation is late by `pause_ns`.
    """
    run = evidence(scenario)
    assert run.done is not None
    completed_ns = np.sort(run.done.columns["completed_ns"])
    first = int(completed_ns[0])
    length_ns = int(completed_ns[-1]) - first
    # The times are stretched to a run of about 10 s.
    completed_ns = first + (completed_ns - first) * (10_000_000_000 // length_ns)
    columns = {**run.done.columns, "completed_ns": completed_ns}
    last = int(completed_ns[-1])
    seen: list[tuple[int, int]] = []
    for at in np.linspace(first, last, 20).astype(np.int64):
        answered = int(np.searchsorted(completed_ns, at))
        seen.append((int(first + (at - first) * times) + pause_ns * (len(seen) == 10), answered))
    return replace(run, looks=seen, done=Completions(columns, run.done.issued, True))


@pytest.mark.parametrize("times", [0.5, 0.9, 1.1, 4.0])
def test_a_clock_of_another_rate_is_found(times: float) -> None:
    """Bug: a run was VALID at four times its real speed, because the measured process's clock ran slowly."""
    (reason,) = witnesses.clock_reasons(looks("single-stream", times))
    assert reason.code == "clock-differs"


@pytest.mark.parametrize("times", [1.0, 0.999, 1.001])
def test_pause_under_the_same_clock_is_not_a_reason(times: float) -> None:
    assert not list(witnesses.clock_reasons(looks("single-stream", times, pause_ns=10**9)))


def test_process_stopped_before_it_writes_a_row_has_the_same_clock() -> None:
    """Bug: if SIGSTOP came between an answer and its row, the supervisor missed the answer in 30 observations."""
    run = looks("single-stream", 1.0)
    at_ns, answered = run.looks[10]
    stopped = [(at_ns + n * 250_000_000, answered) for n in range(1, 31)]
    assert not list(
        witnesses.clock_reasons(replace(run, looks=[*run.looks[:11], *stopped, *run.looks[11:]]))
    )


def test_a_file_that_changed_after_loadgen_is_named() -> None:
    run = replace(evidence("server"), changed_files=["mlperf_log_detail.txt"])
    (reason,) = witnesses.file_reasons(run)
    assert (
        reason.text == "performance run: mlperf_log_detail.txt changed after LoadGen had returned"
    )
