"""Checks LoadGen's detail log for contradictions with the load plan, with the journal and within the log.

LoadGen runs in the same process as the plug-ins, and a plug-in can change LoadGen's settings, clock and files. Every
number therefore needs a second witness, and a contradiction is a reason. docs/trust.md lists what these checks cannot
detect. Has no side effects.
"""

from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import isclose

import numpy as np

from harness.core.codes import Reason
from harness.core.units import NS_PER_MS, NS_PER_S, NS_PER_US, show_ns, show_percent
from harness.loadgen.logs import RATE_DIGITS
from harness.loadgen.scenario import latency_key, percentile_key, scenario_named
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import (
    PERCENTILES,
    Completions,
    percentiles,
    query_latency_ns,
)
from harness.results.tokens import loadgen
from harness.results.verdict import arithmetic

ABOVE_SHARE = 0.01
ABOVE_NS = 20 * NS_PER_US
"""The journal's latencies may exceed LoadGen's by ABOVE_NS or by ABOVE_SHARE, whichever is larger. The journal's
timestamps lie within LoadGen's interval, so the journal's latencies should be smaller.
"""

CLOCK_SHARE = 0.01
CLOCK_NS = 50 * NS_PER_MS
"""The supervisor's clock and the measured process's clock may differ by CLOCK_NS or by CLOCK_SHARE of the run so far,
whichever is larger.
"""

NEWS_NS = NS_PER_S
"""Extra tolerance if load hosts on other machines report answers, because the hosts report in turn, four times per
second.
"""

FEWEST_LOOKS = 3
"""The clocks are compared only if the supervisor made at least this many observations. A run shorter than a second has
fewer.
"""


def settings_reasons(run: Evidence) -> Iterator[Reason]:
    """Yields a reason if the settings in LoadGen's log differ from the plan."""
    if not run.logged or run.plan.harness_scheduled:
        return
    differences = [
        f"{key} is {run.log.get(key)}, but the plan has {expected}"
        for key, expected in _expected(run).items()
        if not _equal(run.log.get(key), expected)
    ]
    if differences:
        yield Reason("wrong-settings", f"{run.plan.role} run: LoadGen's {'; '.join(differences)}")


def _expected(run: Evidence) -> Mapping[str, object]:
    """Maps a key of LoadGen's detail log to the value that the plan requires.

    An official run's files set more values than the plan contains. An audit's files change how samples are drawn and
    logged.
    """
    plan, scenario = run.plan, scenario_named(run.plan.scenario)
    expected: dict[str, object] = {
        "qsl_reported_total_count": plan.total_count,
        "qsl_reported_performance_count": plan.performance_count,
        "effective_sample_concatenate_permutation": plan.equal_issue,
    }
    if plan.audit_config is None:
        expected |= {
            "effective_performance_issue_same": False,
            "effective_performance_issue_unique": False,
            "effective_accuracy_log_sampling_target": plan.logged_answers,
        }
        if plan.model_key is None:
            expected["effective_accuracy_log_rng_seed"] = plan.answers_seed
            expected["effective_accuracy_log_probability"] = 0
    if plan.model_key is None:
        expected |= {
            "effective_max_duration_ms": 0,
            "effective_max_query_count": 0,
        }
    if plan.accuracy:
        return expected
    if not scenario.all_at_once:
        expected["effective_samples_per_query"] = plan.samples_per_query
    if plan.model_key is None:
        key = "sample" if scenario.all_at_once else "query"
        expected[f"effective_min_{key}_count"] = plan.query_count
    if scenario.scheduled:
        expected["effective_target_qps"] = plan.target_qps
        expected["effective_target_latency_percentile"] = plan.percentile
        if not plan.token_latencies:
            expected["effective_target_latency_ns"] = plan.latency_bound_ns
    if plan.model_key is None:  # in other runs, LoadGen logs this key only if the value is true
        expected["requested_use_token_latencies"] = plan.token_latencies or None
    return expected


def _equal(logged: object, expected: object) -> bool:
    if isinstance(logged, int | float) and isinstance(expected, float):
        return isclose(logged, expected, rel_tol=RATE_DIGITS)
    return logged == expected


def log_reasons(run: Evidence) -> Iterator[Reason]:
    """Yields a reason if results in LoadGen's log contradict each other or the journal."""
    if not run.logged or run.plan.accuracy or run.plan.harness_scheduled:
        return
    contradictions = [*arithmetic.contradictions(run.log)]
    if run.done and run.done.answered_once:
        contradictions += [*_rate(run, run.done), *_latencies(run, run.done)]
        if run.plan.token_latencies and not run.done.failed:
            contradictions += loadgen.contradictions(run.log, run.done)
    for contradiction in contradictions:
        yield Reason("numbers-disagree", f"LoadGen's log: {contradiction}")


def _rate(run: Evidence, done: Completions) -> Iterator[str]:
    """Yields a contradiction if a rate differs from the number of samples divided by their time in the journal."""
    scenario = scenario_named(run.plan.scenario)
    key = scenario.rate_key
    logged = run.log.get(key) if key else None
    if key is None or logged is None:
        return
    start_ns = int(done.columns["scheduled_ns"].min())
    if scenario.all_at_once:
        samples, took_ns = len(done), int(done.columns["completed_ns"].max()) - start_ns
    else:  # LoadGen's results.cc counts the gaps until the last issued query is answered
        samples, took_ns = len(done) - 1, int(done.columns["completed_ns"][-1]) - start_ns
    if samples >= 1 and took_ns > 0:
        yield from loadgen.other_rate(key, logged, samples, took_ns)


def _latencies(run: Evidence, done: Completions) -> Iterator[str]:
    """Yields LoadGen's latencies and counts of late queries that are smaller than the journal's."""
    scenario, log, plan = scenario_named(run.plan.scenario), run.log, run.plan
    latency_ns = query_latency_ns(done, plan.samples_per_query)
    if not len(latency_ns):
        return
    # LoadGen started its schedule no earlier than our timestamps show, and no later than LoadGen's first call. A pause
    # between our timestamp of the fastest answer and LoadGen's timestamp moves the computed start back by the length of
    # the pause.
    latency_ns = latency_ns - int((done.columns["entry_ns"] - done.columns["scheduled_ns"]).min())
    ours = percentiles(latency_ns)
    keys = {name: percentile_key(scenario, fraction) for name, fraction in PERCENTILES.items()}
    keys |= {name: latency_key(scenario, name) for name in ("min", "mean", "max")}
    for name, key in keys.items():
        theirs = log.get(key)
        if theirs is not None and ours[name] > theirs + max(ABOVE_SHARE * theirs, ABOVE_NS):
            yield (
                f"{key} is {show_ns(theirs)}, but the journal's is {show_ns(ours[name])}: answers cannot "
                "reach LoadGen before they are made"
            )
    if scenario.scheduled and plan.latency_bound_ns is not None:
        slack_ns = max(ABOVE_SHARE * plan.latency_bound_ns, ABOVE_NS)
        late = int((latency_ns > plan.latency_bound_ns + slack_ns).sum())
        logged = log.get("result_overlatency_query_count")
        if logged < late:
            yield f"count of late queries is {logged:,}, but the journal has at least {late:,} late queries"


def journal_reasons(run: Evidence, max_batch: int | None) -> Iterator[Reason]:
    """Yields a reason if the journal contains rows that an honest run cannot produce.

    max_batch: largest batch size of the instance group, in samples.
    """
    done = run.done
    if run.failure is not None or not done:
        return
    for impossible in _impossible(run, done, max_batch):
        yield Reason("journal-impossible", f"{run.plan.role} run: {impossible}")


def file_reasons(run: Evidence) -> Iterator[Reason]:
    """Yields a reason if a plug-in changed LoadGen's files, or if someone changed them after the run."""
    if run.failure is None and run.changed_files:
        names = " and ".join(run.changed_files)
        yield Reason(
            "log-changed",
            f"{run.plan.role} run: {names} changed after LoadGen had returned",
        )


def clock_reasons(run: Evidence) -> Iterator[Reason]:
    """Yields a reason if the measured process's clock differs from the supervisor's.

    Each time the supervisor looks, it must see exactly the answers that are already completed. Observations that show
    no new answer do not count, because a stopped process may have completed an answer without recording it. The median
    excludes observations during a pause.
    """
    done = run.done
    if done is None or not run.looks:
        return
    completed_ns = np.sort(done.all_completed_ns)
    begun_ns = int(run.looks[0][0])
    is_remote = any(host["clock_error_ns"] for host in run.load_hosts)
    least_ns = CLOCK_NS + NEWS_NS if is_remote else CLOCK_NS
    deviations = []
    for (_, before), (at_ns, answered) in pairwise(run.looks):
        if before < answered < len(completed_ns):
            # The answer's timestamp minus the time when the supervisor saw the answer.
            early_ns = int(completed_ns[answered - 1]) - at_ns
            # A time when the supervisor had not yet seen the next answer, minus that answer's timestamp.
            late_ns = at_ns - int(completed_ns[answered])
            allowed_ns = max(least_ns, CLOCK_SHARE * (at_ns - begun_ns))
            deviations.append(max(early_ns, late_ns) / allowed_ns)
    if len(deviations) >= FEWEST_LOOKS and float(np.median(deviations)) > 1:
        yield Reason(
            "clock-differs",
            f"{run.plan.role} run: the measured process's clock and the supervisor's differ by more than "
            f"{show_ns(least_ns)} and {show_percent(CLOCK_SHARE)} of the run",
        )


def _impossible(run: Evidence, done: Completions, max_batch: int | None) -> Iterator[str]:
    columns = done.columns
    own = (
        ["scheduled_ns"] if run.plan.harness_scheduled else []
    )  # LoadGen's scheduled times are only estimates, so they are left out
    stamps = [*own, "entry_ns", *(end for _, end in [*done.edges.values()][1:])]
    for earlier, later in pairwise(stamps):
        before = columns[later] < columns[earlier]
        if before.any():
            yield (
                f"{int(before.sum()):,} samples were {later.removesuffix('_ns')} before they were "
                f"{earlier.removesuffix('_ns')}"
            )
    if done.is_remote and "first_token_ns" in columns:
        first_ns = columns["first_token_ns"]
        early = (first_ns > 0) & (first_ns < columns["sent_ns"])
        if early.any():
            yield f"{int(early.sum()):,} samples had a first token before they were sent"
    index = columns["index"]
    if int(index.min()) < 0 or int(index.max()) >= run.plan.total_count:
        yield f"dataset indices lie outside 0 to {run.plan.total_count - 1:,}"
    sizes = columns["batch_size"]
    if max_batch is not None and int(sizes.max()) > max_batch:
        yield f"a batch held {int(sizes.max()):,} samples, but the largest allowed batch has {max_batch:,}"
    _, first, counts = np.unique(columns["batch"], return_index=True, return_counts=True)
    if done.answered_once and (counts != sizes[first]).any():
        yield "a batch's number of rows differs from its size"
    if done.is_remote or done.generates:
        return  # one writer has many samples in flight, so its rows overlap
    begin, end, worker = (columns[name][first] for name in ("taken_ns", "completed_ns", "worker"))
    order = np.lexsort((begin, worker))
    same = worker[order][1:] == worker[order][:-1]
    overlapping = same & (begin[order][1:] < end[order][:-1])
    if overlapping.any():
        yield f"a worker took {int(overlapping.sum()):,} batches before it had completed the previous batch"
