"""Summarises a run that raises its rate until it misses an SLO, and then holds a lower rate. Has no side effects."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from harness.core.config.parse import Slo
from harness.core.stats import percentile_ns, share_interval
from harness.core.units import counted, show_rate, show_share
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.stages import Completions
from harness.results.schema.client import Ramp, RampStep
from harness.results.slos.judged import good_queries
from harness.types import Array

STEP = "step"
"""Column that contains each query's step."""


def split(done: Completions, rows: Mapping[str, Array] | None) -> Completions:
    """Returns the completions in the last hold. The field `before` of the result contains the earlier queries. rows:
    columns named by RAMP_ROWS; None if the run was cut off.
    """
    if rows is None or not len(done):
        return done
    order = done.columns["order"]
    step = np.searchsorted(rows["first"], order, side="right") - 1
    due_ns = np.minimum(rows["due_ns"][order], done.columns["entry_ns"])
    columns = {**done.columns, "scheduled_ns": due_ns, STEP: step.astype(np.int32)}
    last = step == len(rows["first"]) - 1
    held, before = ({n: column[mine] for n, column in columns.items()} for mine in (last, ~last))
    return replace(done, columns=held, before=before)


def section(run: Evidence, slos: Sequence[Slo]) -> Ramp | None:
    """Returns the section of result.json; None for a run without a ramp."""
    done, rows = run.done, run.ramp
    if not done or done.before is None or rows is None or STEP not in done.columns:
        return None
    whole = {
        name: np.concatenate([done.before[name], column]) for name, column in done.columns.items()
    }
    steps = [_step(whole, number, rows, tuple(slos)) for number in range(len(rows["first"]))]
    broken = [step["rate_per_s"] for step in steps if step["broken"]]
    return {
        "held_per_s": steps[-1]["rate_per_s"],
        "held": not steps[-1]["broken"],
        "broke_per_s": min(broken) if broken else None,
        "holds": sum(step["holds"] for step in steps),
        "steps": steps,
    }


def _step(
    columns: Mapping[str, Array], number: int, rows: Mapping[str, Array], slos: tuple[Slo, ...]
) -> RampStep:
    mine = columns[STEP] == number
    own = Completions({n: column[mine] for n, column in columns.items()}, int(mine.sum()), True)
    count = len(own)
    good = good_queries(own, 1, slos) if count else 0
    low, high = share_interval(good, count) if count else (None, None)
    latency = np.sort(own.latency_ns)
    return {
        "rate_per_s": float(rows["rate"][number]),
        "holds": bool(rows["holds"][number]),
        "queries": count,
        "share": good / count if count else None,
        "share_low": low,
        "share_high": high,
        "p50_ns": percentile_ns(latency, 0.5) if count else None,
        "p99_ns": percentile_ns(latency, 0.99) if count else None,
        "broken": bool(rows["broken"][number]),
    }


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the ramp's result in one line; None for a run without a ramp."""
    ramp = result.get("ramp")
    if not ramp:
        return None
    held = ramp["steps"][-1]
    words = [f"held {show_rate(ramp['held_per_s'])} queries/s"]
    if held["share"] is not None:
        low, high = (show_share(held[key]) for key in ("share_low", "share_high"))
        words.append(f"{show_share(held['share'])} ({low} to {high}) met every SLO")
    if ramp["broke_per_s"] is not None:
        words.append(f"an SLO broke at {show_rate(ramp['broke_per_s'])}")
    else:
        words.append("no SLO broke before the last of the --queries")
    words.append(counted(len(ramp["steps"]), "step"))
    return ", ".join(words)
