"""Summarises the SLOs of a run and its goodput. Pure."""

from harness.core.config.parse import Slo
from harness.core.units import NS_PER_S
from harness.results.evidence.evidence import Evidence
from harness.results.schema.client import Goodput
from harness.results.slos.judged import good_queries, judged


def section(run: Evidence, slos: tuple[Slo, ...]) -> Goodput | None:
    """Returns the section of result.json; None without an SLO or without an answer."""
    done, plan = run.done, run.plan
    if not slos or done is None or len(done) < plan.samples_per_query:
        return None
    columns, each = done.columns, plan.samples_per_query
    good = good_queries(done, each, slos)
    seconds = float(columns["completed_ns"].max() - columns["scheduled_ns"].min()) / NS_PER_S
    every = [judged(done, each, slo) for slo in slos]
    return {
        "per_s": good / seconds if seconds > 0 else None,
        "share": good / (len(done) // each),
        "slos": [
            {
                "slo": str(one.slo),
                "value_ns": one.value_ns,
                "late": one.late,
                "of": one.of,
                "met": one.is_met,
            }
            for one in every
        ],
    }
