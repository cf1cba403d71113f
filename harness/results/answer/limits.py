"""Finds what limited a run: the model, the queue, the load generator or the machine. Has no side effects."""

import re
from collections.abc import Mapping
from typing import Any

from harness.core.codes import CLIENT_BOUND
from harness.core.config.parse import parse_slos
from harness.core.units import show_ns, show_percent, show_rate
from harness.loadgen.scenario import scenario_named
from harness.results.answer.doubts import CAUSES, disturbance
from harness.results.answer.load_generator import Judgement, judged, most_lost, slowest

_PARTS = {
    "model": ("gather", "infer", "postprocess"),
    "server and the network": ("remote",),
    "network": ("network", "reply"),
    "nodes' queues": ("node_queue",),
    "client": ("send", "notice", "decode"),
    "load generator": ("issue_delay", "complete"),
    "queue": ("queue",),
}
"""Maps each part of the system to the stages in which it processes a sample."""

_MOSTLY = 0.5
"""A part of the system is named as the limit if it takes at least this share of a query's time."""

_FAR = 0.1
"""If a run takes at most this share of its bounds, a small disturbance of the machine is not named as the limit."""

_WHERE = {
    "issue_delay": "until it is issued",
    "queue": "in the queue",
    "gather": "until its inputs are collected",
    "infer": "in the model",
    "postprocess": "after the model",
    "send": "until its request is sent",
    "remote": "on the server and the network",
    "network": "on the network",
    "node_queue": "in the queue of a node",
    "reply": "until a node has sent its reply",
    "notice": "until its reply is read",
    "decode": "until its reply is decoded",
    "complete": "until its answer is reported",
}
"""Maps a stage to the end of a sentence that says where, or until when, a query waits."""


def limited_by(result: Mapping[str, Any]) -> str | None:
    """Returns the limit, such as `the model: 96 % of a query's mean time`; None if the run's files do not show it."""
    if not result.get("stages_ns"):
        return None
    if bound := next((r for r in result["reasons"] if r["code"] == CLIENT_BOUND), None):
        return f"the client: {bound['text'].partition(', which is more than')[0]}"
    if result["backend"] == "null":
        return "the load generator: the null backend has no model"
    section = result.get("reference") or {}
    judgement = judged(section)
    if disturbed := of_the_machine(result):
        return f"the machine: {disturbed}"
    return _undisturbed(result, section, judgement)


def of_the_machine(result: Mapping[str, Any]) -> str:
    """Returns the disturbance of the machine that limited the run; '' if no disturbance limited it."""
    disturbed = disturbance(result["doubts"])
    if disturbed is None:
        return ""
    # In Offline, other work on the cores also slows the bare loops, with which the run is compared.
    is_cause = disturbed["code"] in CAUSES
    is_slowed = scenario_named(result["scenario"]).all_at_once and is_cause
    judgement = judged(result.get("reference") or {})
    if not is_slowed and _is_plain(result, judgement):
        return ""
    # A disturbed machine delays the load generator, which is not to be blamed for that.
    if not is_cause and judgement is not Judgement.HELD_BACK and _is_far_from_bounds(result):
        return ""
    return re.split(r": |; ", disturbed["text"])[0]  # because the list of doubts shows the rest


def _is_far_from_bounds(result: Mapping[str, Any]) -> bool:
    """Returns whether the run has SLOs and takes at most _FAR of each bound, so that a small disturbance does not matter."""
    slos = (result.get("goodput") or {}).get("slos") or ()
    bounds_ns = {str(slo): slo.bound_ns for slo in parse_slos(result.get("slo") or "")}
    return bool(slos) and all(
        one["value_ns"] is not None and one["value_ns"] <= _FAR * bounds_ns.get(one["slo"], 0)
        for one in slos
    )


def _undisturbed(
    result: Mapping[str, Any], section: Mapping[str, Any], judgement: Judgement
) -> str | None:
    if judgement is Judgement.HELD_BACK:
        return f"the load generator: {_cost(section)}"
    if judgement is Judgement.MODEL_SLOWER:
        return "the model: its batches took longer in the run than alone"
    if scenario_named(result["scenario"]).all_at_once:
        text = _of_offline(section, judgement)
        return f"{text}{_idle_cores(result, section)}" if text else None
    part, share = _longest(result["stages_ns"], judgement)
    if judgement is Judgement.AS_FAST and share < _MOSTLY:
        return f"the {part}: {section['what']} would be as long without the load generator's cost"
    idle = _idle_cores(result, section) if part in ("model", "queue") else ""
    idle = idle or (_fewer_threads(result) if part == "model" else "")
    wait_ns = result["plan"].get("batch_wait_ns") if part == "queue" and result.get("plan") else 0
    waits = f"; a batch waits up to {show_ns(wait_ns)} to fill (--batch-wait)" if wait_ns else ""
    return f"the {part}: {show_percent(share)} of a query's mean time{waits or idle}"


def _idle_cores(result: Mapping[str, Any], section: Mapping[str, Any]) -> str:
    """Compares the planned number of instances with the number that would occupy all cores. Returns '' if the plan
    leaves fewer than half of the cores idle.
    """
    more = section.get("on_all_cores")
    if more is None:
        return ""
    plan, value = result["plan"], more["reference"]
    in_ns = section["unit"] == "ns"
    number = f"{section['what']} {show_ns(value)}" if in_ns else f"{show_rate(value)} samples/s"
    used = plan["instances"] * plan["threads"]
    return f"; the plan uses {used} of {plan['cores']:g} cores: {more['instances']} instances would reach {number}"


def _fewer_threads(result: Mapping[str, Any]) -> str:
    """Returns a note that the warm-up chose fewer threads, and so left cores idle; otherwise ''."""
    calibration = result.get("calibration") or {}
    times_ns, plan = dict(calibration.get("thread_latency_ns", ())), result.get("plan")
    if not plan or plan["threads"] not in times_ns or plan["threads"] == max(times_ns):
        return ""
    own_ns, most = times_ns[plan["threads"]], max(times_ns)
    return (
        f"; the plan uses {plan['threads']} of {plan['cores']:g} cores: in the warm-up, a query took {show_ns(own_ns)}, but "
        f"{show_ns(times_ns[most])} with {most} threads"
    )


def _is_plain(result: Mapping[str, Any], judgement: Judgement) -> bool:
    """Returns whether the model or the queue took most of the time, so that a disturbed machine does not matter."""
    if judgement is not Judgement.AS_FAST:
        return False
    offline = scenario_named(result["scenario"]).all_at_once
    return offline or _longest(result["stages_ns"], judgement)[1] >= _MOSTLY


def _of_offline(section: Mapping[str, Any], judgement: Judgement) -> str | None:
    """Returns the model's rate as the limit. In Offline, the stages' shares of the time mean nothing, because all
    samples wait in one query.
    """
    if judgement is Judgement.UNKNOWN:
        return None
    return f"the model: alone it answers {show_rate(section['reference'])} samples/s"


def _cost(section: Mapping[str, Any]) -> str:
    """Returns the number that the run would reach if the load generator cost nothing, and the stage that lost the most
    time. Leaves out the number if the reference covers only the first queries, because the line `answer` shows the
    number for all queries.
    """
    if section["unit"] != "ns":
        return f"the model alone answers {show_rate(section['reference'])} samples/s"
    whom = slowest(section)
    query = f"a query of {whom}" if whom else "a query"
    most = [
        f"{query} waits {show_ns(section['lost_ns'][stage])} longer {_WHERE[stage]}"
        for stage in most_lost(section)[:1]
    ]
    if section.get("queries", 0) < section.get("of_queries", 0) and most:
        return most[0]
    would = f"{section['what']} would be {show_ns(section['reference'])} without its cost"
    return "; ".join([would, *most])


def _longest(stages: Mapping[str, Any], judgement: Judgement) -> tuple[str, float]:
    """Returns the part of the system in which a query spent the most time, and its share of the query's time."""
    shares = {
        part: sum(stages[stage]["share"] for stage in own if stage in stages)
        for part, own in _PARTS.items()
    }
    if judgement is Judgement.AS_FAST:
        del shares["load generator"]
    most = max(shares, key=shares.__getitem__)
    return most, shares[most]
