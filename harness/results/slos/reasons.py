"""Derives reasons for SLOs that LoadGen does not judge, and advice for SLOs that LoadGen judges. Has no side effects."""

import math
from collections.abc import Iterator

from harness.core.codes import Reason
from harness.core.config.parse import Slo
from harness.core.stats import late_allowed, queries_needed, queries_to_settle
from harness.core.units import show_ns, show_rate
from harness.loadgen.scenario import Scenario
from harness.results.evidence.evidence import Evidence
from harness.results.slos.judged import Judged, judged

_LATE = {
    "": ("queries", "took longer than {}"),
    "ttft": ("first tokens", "did not come within {}"),
    "tpot": ("answers", "took longer than {} per further token"),
    "itl": ("tokens", "did not come within {} of the previous token"),
}


def reasons(scenario: Scenario, run: Evidence, slos: tuple[Slo, ...]) -> Iterator[Reason]:
    """Yields reasons for SLOs that LoadGen's log does not judge. Requires a run with a log."""
    if not run.logged or not run.done:
        return
    for slo in slos:
        one = judged(run.done, run.plan.samples_per_query, slo)
        if only_failures_are_late(run, one):
            continue
        if _by_log(scenario, run, slo, slos):
            continue
        if why := _not_measured(run, one):
            yield Reason("slo-not-measured", f"{slo}: {why}")
        elif scenario.all_at_once or slo.of == "itl":
            if not one.is_met:
                yield missed(one)
        elif one.late > late_allowed(one.of, slo.percentile):
            yield too_late(one, run)


def only_failures_are_late(run: Evidence, one: Judged) -> bool:
    """Returns whether every late item failed. A separate reason then reports the failures, and a different rate would
    not help.
    """
    failed = run.ended["failed_samples"] if run.ended else 0
    return run.plan.samples_per_query == 1 and 0 < one.late <= failed and one.slo.of != "itl"


def _not_measured(run: Evidence, one: Judged) -> str:
    """Returns why the answers cannot show whether the SLO was met; '' if the answers can show it."""
    if one.slo.of == "itl" and not _has_gaps(run):
        return "the server does not report the tokens of each chunk, or the answers have one token each"
    if not one.of:
        return "no answer has more than one token"
    if one.late <= one.most_late < one.late + one.unknown:
        return f"the server counts no tokens in {one.unknown:,} of {one.of:,} answers"
    return ""


def _by_log(scenario: Scenario, run: Evidence, slo: Slo, slos: tuple[Slo, ...]) -> bool:
    """Returns whether LoadGen's verdict or numbers show whether the run met the SLO."""
    if slo.of or slo.percentile < max(s.percentile for s in slos if not s.of):
        return False
    if not run.plan.token_latencies:
        return True
    return scenario.slo_value_ns(run.log.values, slo.percentile) is not None


def _has_gaps(run: Evidence) -> bool:
    ended = run.ended or {}
    told = (ended.get("client") or ended).get("tokens") or {}
    return bool((told.get("streams") or {}).get("itl_ns"))


def lateness(one: Judged) -> str:
    what, took = _LATE[one.slo.of]
    return f"{one.late:,} of {one.of:,} {what} {took.format(show_ns(one.slo.bound_ns))}"


def missed(one: Judged) -> Reason:
    """Returns the reason for a percentile above its bound."""
    most = math.ceil(round(one.of * (1 - one.slo.percentile), 6)) - 1
    return Reason(
        "slo-missed",
        f"{lateness(one)}, but {one.slo.name} allows at most {most:,}",
    )


def too_late(one: Judged, run: Evidence) -> Reason:
    """Returns the reason for a percentile above its bound. If the queries are too few to prove the miss, returns the
    reason for too few queries, with the necessary number and duration.
    """
    rate_per_s = run.log.get("effective_target_qps")
    late, count, percentile = one.late, one.of, one.slo.percentile
    what, name = _LATE[one.slo.of][0], one.slo.name
    needed = queries_to_settle(late, count, percentile) if late else queries_needed(0, percentile)
    if needed is None:
        return missed(one)
    pace = (
        f", {max(1.0, needed / rate_per_s):,.0f} s at {show_rate(rate_per_s)}/s,"
        if rate_per_s
        else ""
    )
    seen = f"{count:,} {what} are too few to prove {name}, although none was late"
    if late:
        seen = f"{lateness(one)}: too few {what} to prove {name}"
    return Reason("early-stopping", f"{seen}: {needed:,}{pace} would be enough")
