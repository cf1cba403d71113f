"""Finds what limited a run: the model, the queue, the load generator or the machine. Pure."""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from harness.core.units import show_ns, show_percent, show_rate
from harness.loadgen.scenario import scenario_named
from harness.results.answer.doubts import disturbance
from harness.results.evidence.reference import TIGHT

_PARTS = {
    "model": ("gather", "infer", "postprocess"),
    "load generator": ("issue_delay", "complete"),
    "queue": ("queue",),
}
"""Part of the system -> the stages of a sample that it takes."""

_WHERE = {
    "issue_delay": "until a query is issued",
    "queue": "in the queue",
    "gather": "to collect the inputs",
    "infer": "in the model",
    "postprocess": "after the model",
    "complete": "to report the answers",
}


class Judgement(Enum):
    """The run beside a load generator without cost (harness/results/evidence/reference.py)."""

    AS_FAST = "the load generator cost nothing that shows"
    HELD_BACK = "the load generator held the run back"
    MODEL_SLOWER = "the model was slower in the run than in bare loops"
    UNKNOWN = "the machine's speed changed, or there is nothing to compare with"


def limited_by(result: Mapping[str, Any]) -> str | None:
    """`the model: 96 % of a query's time`; None where the files do not show it."""
    if not result.get("stages_ns"):
        return None
    if result["backend"] == "null":
        return "the load generator: the null backend has no model"
    section = result.get("reference") or {}
    judgement = judged(section)
    disturbed = disturbance(result["doubts"])
    if disturbed and judgement is not Judgement.AS_FAST:
        return f"the machine: {disturbed['text'].partition(': ')[0]}"
    if judgement is Judgement.HELD_BACK:
        return f"the load generator: {held_back(section)}"
    return _model_or_queue(result, judgement)


def _model_or_queue(result: Mapping[str, Any], judgement: Judgement) -> str | None:
    if judgement is Judgement.MODEL_SLOWER:
        return "the model: it was slower in the run than alone before and after it"
    if not scenario_named(result["scenario"]).all_at_once:
        return _by_share(result["stages_ns"], judgement)
    if judgement is Judgement.UNKNOWN:
        return None
    return f"the model: alone it answers {show_rate(result['reference']['reference'])} samples/s"


def judged(section: Mapping[str, Any]) -> Judgement:
    """section: `reference` of result.json; empty without one."""
    if "ratio" not in section:
        return Judgement.UNKNOWN
    unit = section["unit"]
    worse = _times_worse(section["ratio"], unit)
    slower = section.get("at_slower_loops")
    if (slower and _times_worse(slower["ratio"], unit) <= TIGHT) or worse < 1 / TIGHT:
        return Judgement.UNKNOWN
    if worse <= TIGHT:
        return Judgement.AS_FAST
    lost_ns = section.get("lost_ns", {})
    at_run_speed = _times_worse(section["at_run_speed"]["ratio"], unit)
    most = max(lost_ns, key=lost_ns.__getitem__, default="")
    if at_run_speed <= TIGHT or most == "infer":
        return Judgement.MODEL_SLOWER
    return Judgement.HELD_BACK


def held_back(section: Mapping[str, Any]) -> str:
    """What the load generator cost: the number without it, and the stage that lost most."""
    if section["unit"] != "ns":
        return f"the model alone answers {show_rate(section['reference'])} samples/s"
    lost_ns = section.get("lost_ns", {})
    most = max(lost_ns, key=lost_ns.__getitem__, default="")
    where = f"; {show_ns(lost_ns[most])} more {_WHERE[most]}" if most in _WHERE else ""
    return f"{section['what']} would be {show_ns(section['reference'])} without its cost{where}"


def _times_worse(ratio: float, unit: str) -> float:
    """ratio: the run's number divided by the reference's."""
    return ratio if unit == "ns" else 1 / ratio


def _by_share(stages: Mapping[str, Any], judgement: Judgement) -> str:
    """The part in which a query spent most of its time."""
    shares = {
        part: sum(stages[stage]["share"] for stage in own if stage in stages)
        for part, own in _PARTS.items()
    }
    if judgement is Judgement.AS_FAST:
        del shares["load generator"]
    most = max(shares, key=shares.__getitem__)
    return f"the {most}: {show_percent(shares[most])} of a query's time"
