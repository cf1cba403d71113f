"""Compares the rows of a finished run (samples, answers, machine) with LoadGen's logs and the plan."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

import numpy as np

from harness.core.clock import JUMP_NS
from harness.core.units import NS_PER_S, show_ns
from harness.loadgen.logs import ACCURACY, AccuracyLogError, DetailLog, read_logged_answers
from harness.loadgen.schedule import SCHEDULE, planned_ns, read_stored
from harness.machine.host_log import HOST_CSV, HostLog
from harness.machine.power.energy import utc_ns
from harness.results import records, run_folder
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.findings import Findings
from harness.results.verdict.reasons import clock_step_ns
from harness.types import Array

SLACK_NS = 2 * NS_PER_S
"""If two records of one moment differ by more than this value, the difference is reported. LoadGen rounds its start to
whole seconds and its window to milliseconds. A separate reason reports a stepped clock.
"""

_COUNTERS = ("cpu_user_s", "cpu_system_s", "measured_", "thermal_throttles", "cgroup_throttled_s")
"""Prefixes of the columns of host.csv that never decrease. The kernel's idle times are left out, because they may
decrease.
"""


def differences(folder: Path, derived: Findings) -> Iterator[str]:
    for role, run in derived.runs.items():
        if run.failure is None and run.ended is not None:
            yield from _samples(
                folder / run_folder.FOLDERS[role],
                run,
                _workers(derived, run) * max(1, len(run.load_hosts)),
                _has_own_order(derived),
            )
    yield from _order(folder, derived)
    if derived.host is not None:
        yield from _machine(folder / HOST_CSV, derived.host)


def _workers(derived: Findings, run: Evidence) -> int:
    """Returns the number of instances that may have answered, including the wide instance if the run had one."""
    elastic = (run.ended or {}).get("elastic") or {}
    return derived.spec.instances + bool(elastic.get("cpus"))


def _has_own_order(derived: Findings) -> bool:
    """Returns whether the dataset, not LoadGen, chose the samples."""
    return derived.loaded is not None and "identity_bytes" in derived.loaded.dataset


def _samples(folder: Path, run: Evidence, instances: int, own_order: bool) -> Iterator[str]:
    done, plan, path = run.done, run.plan, folder / records.COMPLETIONS
    if not done:
        return
    columns = done.columns
    if int(columns["worker"].min()) < 0 or int(columns["worker"].max()) >= instances:
        yield f"{path}: a worker is not one of the {instances} instances"
    if done.issued > plan.journal_samples:
        yield f"{path}: {done.issued:,} samples were issued, but the journal had room for {plan.journal_samples:,}"
    due_ns: Array | None
    if plan.schedule is not None and not plan.sessions:
        due_ns = read_stored(str(folder / SCHEDULE)).after_ns
    else:
        due_ns = planned_ns(plan, int(columns["order"].max()) + 1)
    if due_ns is not None:
        start_ns = columns["scheduled_ns"] - due_ns[columns["order"]]
        if int(start_ns.min()) != int(start_ns.max()):
            of = SCHEDULE if plan.schedule is not None else "LoadGen's schedule"
            yield f"{path}: the queries were not due at the times in {of}"
    # a different check reports a log that belongs to another run
    log = run.log if run.logged else DetailLog()
    counted = (log.get("generated_query_count"), log.get("generated_samples_per_query"))
    in_one_set = not plan.accuracy or plan.performance_count >= plan.total_count
    if plan.model_key is None and in_one_set and None not in counted:
        generated = counted[0] * counted[1]
        if generated != done.issued:
            yield f"{path}: {done.issued:,} samples were issued, but according to LoadGen's log {generated:,} were generated"
    if not plan.harness_scheduled and (plan.accuracy or plan.logged_answers):
        yield from _answers(folder / ACCURACY, run, own_order)


def _answers(path: Path, run: Evidence, own_order: bool) -> Iterator[str]:
    """Yields a line if answers were logged for repeated samples or for samples that were never issued. The verdict
    reports missing answers separately. own_order: whether the dataset chose the samples, so that the journal differs
    from LoadGen's log.
    """
    assert run.done is not None
    columns = run.done.columns
    indices = dict(zip(columns["order"].tolist(), columns["index"].tolist(), strict=True))
    try:
        logged = [(row.order, row.answer.sample) for row in read_logged_answers(path)]
    except AccuracyLogError:
        return
    once = dict(logged)
    if len(once) < len(logged):
        yield f"{path} contains {len(logged) - len(once):,} further answers to samples that already have one"
    strangers = sum(
        order not in indices or (indices[order] != sample and not own_order)
        for order, sample in once.items()
    )
    if strangers:
        yield (
            f"{strangers:,} answers in {path} belong to different samples than the rows at the same places in "
            f"{records.COMPLETIONS}"
        )


def _order(folder: Path, derived: Findings) -> Iterator[str]:
    """Yields a line for each time that is out of order. The job must start first, followed by its runs one after
    another.
    """
    if any(abs(clock_step_ns(run)) > JUMP_NS for run in derived.runs.values()):
        return
    pairs: dict[tuple[str, str], int] = {}
    for of_looks in (False, True):
        moments = [("the job's start", _ns(derived.started))]
        for role, run in derived.runs.items():
            if run.failure is None:
                of_run = _moments(run, of_looks)
                moments += [(f"the {role} run's {name}", at_ns) for name, at_ns in of_run]
        pairs |= {(a, b): a_ns - b_ns for (a, a_ns), (b, b_ns) in pairwise(moments)}
    for (earlier, later), ahead_ns in pairs.items():
        if ahead_ns > SLACK_NS:
            yield f"{folder}: {earlier} is {show_ns(ahead_ns)} later than {later}"


def _moments(run: Evidence, of_looks: bool) -> Iterator[tuple[str, int]]:
    """Yields (name, wall clock in ns) pairs in their expected order.

    of_looks: whether to use the first time at which the supervisor saw an answer, instead of the last completion.
    Either may come first, because a stopped process may have completed an answer without recording it.
    """
    log = run.log.values if run.logged and not run.plan.harness_scheduled else {}
    if "test_datetime" in log:
        yield "test_datetime in LoadGen's log", _ns(str(log["test_datetime"]))
    if "power_begin" in log:
        yield "power_begin in LoadGen's log", utc_ns(str(log["power_begin"]))
    if run.done:
        yield "first sample", _first_due_ns(run.done)
        if not of_looks:
            yield "last completion", int(np.max(run.done.columns["completed_ns"]))
        elif run.looks:
            yield "supervisor's first look at an answer", _first_look_ns(run)
    if "power_end" in log:
        yield "power_end in LoadGen's log", utc_ns(str(log["power_end"]))


def _first_due_ns(done: Completions) -> int:
    """Returns the due time of the first sample. Includes the samples that a ramp issued before its last hold."""
    columns = done.columns if done.before is None or not len(done.before["order"]) else done.before
    return int(min(columns["scheduled_ns"].min(), done.columns["scheduled_ns"].min()))


def _first_look_ns(run: Evidence) -> int:
    return next((at_ns for at_ns, answered in run.looks if answered), run.looks[-1][0])


def _ns(text: str) -> int:
    """Returns ns since 1970. text: an ISO 8601 time in UTC, as LoadGen and the harness write it."""
    at = datetime.fromisoformat(text)
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * NS_PER_S)


def _machine(path: Path, log: HostLog) -> Iterator[str]:
    """Yields a line if the times do not increase or if a counter decreases."""
    for before, after in pairwise(log.rows):
        if after["wall_ns"] <= before["wall_ns"]:
            yield f"{path}: its rows are not in chronological order"
            return
        fallen = [
            name
            for name, value in after.items()
            if name.startswith(_COUNTERS)
            and not name.endswith("_bytes")
            and value < before.get(name, 0.0)
        ]
        if fallen:
            yield f"{path}: the counter {fallen[0]} falls from one row to the next"
            return
