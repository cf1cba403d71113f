"""Summarises a run's SLOs and its goodput. Has no side effects."""

from harness.core.config.parse import Slo
from harness.core.units import NS_PER_S
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Goodput, JudgedSlo
from harness.results.slos.judged import Judged, good_queries, judged


def section(
    run: Evidence, slos: tuple[Slo, ...], completed_per_s: float | None = None
) -> Goodput | None:
    """Returns the section of result.json; None without an SLO or without an answer.

    completed_per_s: LoadGen's rate in a Server run, because this rate covers a different time than the journal's. The
    goodput is a share of this rate. None selects the journal's rate.
    """
    done, plan = run.done, run.plan
    if not slos or done is None or len(done) < plan.samples_per_query:
        return None
    columns, each = done.columns, plan.samples_per_query
    queries = len(done) // each
    share = good_queries(done, each, slos) / queries
    seconds = float(columns["completed_ns"].max() - columns["scheduled_ns"].min()) / NS_PER_S
    if completed_per_s is None and seconds > 0:
        completed_per_s = queries / seconds
    return {
        "per_s": None if completed_per_s is None else share * completed_per_s,
        "share": share,
        "slos": [_judged(judged(done, each, slo)) for slo in slos],
    }


def _judged(one: Judged) -> JudgedSlo:
    found: JudgedSlo = {
        "slo": str(one.slo),
        "value_ns": one.value_ns,
        "late": one.late,
        "of": one.of,
        "met": one.is_met,
    }
    if one.unknown:
        found["unknown"] = one.unknown
    return found
