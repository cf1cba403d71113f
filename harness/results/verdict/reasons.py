"""Derives the reasons that make a run INVALID. The reasons are stricter than the rules of LoadGen and of the official
checker.

A run without reasons is VALID. docs/decisions/results.md explains the rules. Has no side effects.
"""

from collections.abc import Iterator, Sequence

from harness.core.clock import JUMP_NS, MAX_SLEW_PPM
from harness.core.codes import Reason
from harness.core.config.parse import Slo
from harness.core.units import counted, show_ns
from harness.errors import one_line
from harness.loadgen.logs import DetailLog
from harness.loadgen.plan import MIN_DURATION_MS, least_duration_ms
from harness.loadgen.scenario import Scenario, scenario_named
from harness.models.manifest.schema import Accuracy
from harness.results.evidence.evidence import Evidence
from harness.results.schema.performance import InputProbe, NotProbed
from harness.results.slos.judged import Judged, judged
from harness.results.slos.reasons import only_failures_are_late, too_late
from harness.results.verdict.answers_check import Compared
from harness.types import Score

FEWEST_BY_INDEX = 4
BY_INDEX_SHARE = 0.9
"""The backend answers by index if at least FEWEST_BY_INDEX answers, and at least BY_INDEX_SHARE of the probe's `rows`,
follow the index. Chance produces fewer such answers.
"""


def any_run(run: Evidence) -> Iterator[Reason]:
    name = run.plan.role
    if run.failure is not None:
        yield run.failure
    elif run.ended is None:
        yield Reason(
            "died", f"{name} run: the measured process ended without sending its last message"
        )
    client = run.ended.get("client") if run.ended is not None else None
    if client and (client["failures"] or client["server_gone"]):
        yield from _request_reasons(run, name)
    elif run.ended is not None and run.ended["failed_samples"]:
        count = f"{run.ended['failed_samples']:,} of {len(run.done) if run.done else 0:,}"
        *_, last = run.ended["first_failure"].strip().splitlines() or ["no message"]
        yield Reason("batch-failed", f"{name} run: {count} samples failed: {last}")
    elif run.done is not None and run.done.failed:
        was_sent = "sent_ns" in run.done.columns
        text = f"{name} run: {counted(run.done.failed, 'sample')} failed"
        yield Reason("requests-failed" if was_sent else "batch-failed", text)
    if run.failure is None:
        yield from _log_reasons(run, name)
        yield from _sample_reasons(run, name)
    step_ns = clock_step_ns(run)
    if abs(step_ns) > JUMP_NS:
        yield Reason(
            "clock-jumped",
            f"{name} run: the wall clock was stepped by {show_ns(step_ns)} "
            f"(limit {show_ns(JUMP_NS)}); LoadGen's latencies are wrong: run again",
        )


def _request_reasons(run: Evidence, name: str) -> Iterator[Reason]:
    assert run.ended is not None
    client = run.ended["client"]
    samples = len(run.done) if run.done else 0
    failures = sorted(client["failures"].items(), key=lambda pair: -pair[1])
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in failures)
    *_, last = run.ended["first_failure"].strip().splitlines() or ["no message"]
    if failures:
        yield Reason(
            "requests-failed",
            f"{name} run: {run.ended['failed_samples']:,} of {samples:,} samples failed ({kinds}); the first failure: {last}",
        )
    if client["server_gone"]:
        yield Reason(
            "server-gone",
            f"{name} run: the client gave up on the server: {one_line(client['server_gone'])}",
        )


def clock_step_ns(run: Evidence) -> int:
    """Returns the larger of two clock steps: the largest step that the supervisor saw during the run, and the measured
    process's step over the whole run.

    Slewing moves the clock slowly over a long run, and a change that slewing explains is not a step.
    """
    step_ns = run.clock.largest_step_ns
    if run.ended is not None:
        used = run.ended["used"]
        moved_ns, slewed_ns = used["wall_offset_ns"], used["wall_s"] * 1e3 * MAX_SLEW_PPM
        if abs(moved_ns) > max(slewed_ns, abs(step_ns)):
            step_ns = moved_ns
    return int(step_ns)


def _log_reasons(run: Evidence, name: str) -> Iterator[Reason]:
    log, plan = run.log, run.plan
    if run.done is not None and not run.done and run.done.cancelled is not None:
        yield Reason(
            "all-cancelled",
            f"{name} run: --cancel closed all {run.done.issued:,} requests before their answers: "
            "lower its share, or raise its time",
        )
        return
    if not log.values:
        yield Reason(
            "log-missing",
            f"{name} run: LoadGen wrote no detail log: make the run's folder writable",
        )
        return
    if not log.complete:
        yield Reason(
            "log-incomplete",
            f"{name} run: LoadGen's detail log is cut off, or LoadGen did not write it",
        )
    if log.repeated > 1:
        yield Reason("log-mixed", f"{name} run: the detail log contains {log.repeated} runs")
    if log.contradicted:
        yield Reason(
            "log-mixed",
            f"{name} run: the detail log has two values for {', '.join(log.contradicted[:3])}",
        )
    errors = max(len(log.errors), int(log.get("num_errors") or 0))
    if errors:
        first = f": {log.errors[0]}" if log.errors else ""
        yield Reason("loadgen-errors", f"{name} run: LoadGen reported {errors} errors{first}")
    logged = (log.get("effective_scenario"), log.get("effective_test_mode"))
    if logged != (run.loadgen_scenario, run.expected_mode) and (log.complete or None not in logged):
        yield Reason(
            "wrong-run",
            f"{name} run: the log belongs to {logged[0]} {logged[1]}, "
            f"not to {run.loadgen_scenario} {run.expected_mode}",
        )
    for seed, key in zip(plan.seeds, ("qsl", "sample_index", "schedule"), strict=True):
        if log.get(f"effective_{key}_rng_seed") != seed:
            yield Reason(
                "wrong-seed", f"{name} run: the {key} seed in the log differs from the plan's seed"
            )


def _sample_reasons(run: Evidence, name: str) -> Iterator[Reason]:
    if run.done is None:
        yield Reason("journal-missing", f"{name} run: the journal is empty")
        return
    if not run.done.answered_once:
        yield Reason(
            "samples-lost",
            f"{name} run: {run.done.issued:,} samples were issued, but {len(run.done):,} answers "
            "were recorded: each sample must be answered exactly once",
        )
    expected = run.log.get("result_query_count")
    if run.logged and expected is not None and not run.plan.accuracy:
        samples = run.log.get("effective_samples_per_query", 1)
        if run.plan.equal_issue:  # Offline's only query then contains more samples than requested
            samples = run.log.get("generated_samples_per_query", samples)
        if expected * samples != run.done.issued:
            yield Reason(
                "samples-lost",
                f"{name} run: LoadGen counted {expected * samples:,} samples, "
                f"but the journal counted {run.done.issued:,}",
            )


def performance(run: Evidence, missed: Sequence[Reason] = ()) -> Iterator[Reason]:
    """Yields LoadGen's verdict with advice. missed: reasons about SLOs that explain why LoadGen reports INVALID."""
    yield from any_run(run)
    yield from missed
    log, plan = run.log, run.plan
    scenario = scenario_named(plan.scenario)
    if not run.logged:
        return
    if log.get("effective_performance_sample_count") != plan.performance_count:
        yield Reason(
            "wrong-sample-count",
            f"{log.source} held {log.get('effective_performance_sample_count')} samples, "
            f"but the plan has {plan.performance_count}",
        )
    counted = log.get("result_query_count", 0)
    is_counted = plan.model_key is None and plan.ramp is None and not scenario.all_at_once
    if is_counted and counted < plan.query_count:
        yield Reason(
            "too-few-queries",
            f"{log.source} counted {counted:,} queries, but the plan has {plan.query_count:,}",
        )
    late = log.get("result_overlatency_query_count", 0)
    met = log.get("result_perf_constraints_met") and log.get("early_stopping_met")
    bound_ns = log.get("effective_target_latency_ns")
    # Without a latency bound, the harness's log only repeats the result for the SLOs on token times.
    is_repeated = plan.token_latencies or (bound_ns is None and missed)
    if scenario.scheduled and not met and not is_repeated:
        bound = Slo(log.get("effective_target_latency_percentile"), bound_ns)
        queries = log.get("result_query_count", 0) - (run.done.left_out if run.done else 0)
        ours = judged(run.done, plan.samples_per_query, bound) if late and run.done else None
        # The log's latencies are slightly longer than the journal's, so the log may count more late queries.
        if ours is None or late > ours.late or not only_failures_are_late(run, ours):
            yield too_late(Judged(bound, late, queries, None), run)
    elif log.get("result_validity") != "VALID" and not missed:
        yield Reason("loadgen-invalid", f"{log.source} reports INVALID: {_constraints(log)}")
    setting = log.get("effective_min_duration_ms", 0)
    if plan.model_key is not None and setting < least_duration_ms(plan.model_key):
        text = f"min_duration was {setting} ms, but the rules require {MIN_DURATION_MS}"
        yield Reason("too-short", text)


def _constraints(log: DetailLog) -> str:
    names = {
        "result_perf_constraints_met": "performance constraints",
        "result_min_duration_met": "min duration",
        "result_min_queries_met": "min queries",
        "early_stopping_met": "early stopping",
    }
    missed = [text for key, text in names.items() if log.get(key) is False]
    return f"not satisfied: {', '.join(missed)}" if missed else "the log names no constraint"


def slo(scenario: Scenario, run: Evidence, slo: Slo | None) -> Iterator[Reason]:
    """Judges the user's SLO in the stream scenarios and Offline. In Server, LoadGen judges the SLO."""
    if slo is None or not run.logged:
        return
    found = scenario.slo_value_ns(run.log.values, slo.percentile)
    if found is not None and found[0] > slo.bound_ns:
        yield Reason(
            "slo-missed",
            f"the {found[1]} is {show_ns(found[0])}, but the SLO {slo} allows {show_ns(slo.bound_ns)}",
        )


def score(score: Score, target: Accuracy | None) -> Iterator[Reason]:
    if target is None or target.metric != score.metric:
        return
    missed = score.value - target.target if score.lower_is_better else target.target - score.value
    digits = 3 if score.unit == "%" else 5
    if missed > 0:
        yield Reason(
            "accuracy-below-target",
            f"accuracy {score.metric} is {score.value:.{digits}f} {score.unit}, "
            f"but the manifest's target is {target.target:g} {score.unit}",
        )


def answers(compared: Compared, allowed: int, *, drawn: bool) -> Iterator[Reason]:
    """Yields reasons if answers are misplaced or if too many answers differ.

    allowed: number of answers that may differ, from the manifest. drawn: whether the server draws tokens at random.
    """
    if compared.misplaced:
        yield Reason(
            "numbers-disagree",
            f"{compared.misplaced:,} of {compared.answers:,} logged answers belong to a different sample "
            "than the same place in the journal",
        )
    if compared.differing > allowed and not drawn:
        yield Reason(
            "answers-differ",
            f"{compared.differing:,} of {compared.answers:,} answers of the performance run differ from "
            f"the accuracy run's (allowed {allowed}); performance, accuracy: {compared.first}",
        )


def by_index(probe: InputProbe | NotProbed | None) -> Iterator[Reason]:
    """Yields a reason if, after inputs were exchanged, the answers followed the dataset indices instead of the inputs.

    A backend does not receive the indices, and a hook may use them only as marks.
    """
    if probe is None or "reason" in probe:
        return
    if probe["by_index"] >= max(FEWEST_BY_INDEX, BY_INDEX_SHARE * probe["rows"]):
        yield Reason(
            "answers-by-index",
            f"{probe['by_index']} of {probe['rows']} answers to other samples' inputs followed the dataset "
            "indices in the caller's frames: the backend or the hook answers from a table",
        )
