"""Shows the goodput of a run and all its SLOs as one line."""

from collections.abc import Mapping
from typing import Any

from harness.core.config.parse import leading, parse_slo, parse_slos
from harness.core.stats import share_interval
from harness.core.units import show_ns, show_percent, show_rate, write_duration
from harness.loadgen.scenario import scenario_named


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns None without an SLO, or if the answer's latency SLO is the only one."""
    goodput = result.get("goodput")
    slos = parse_slos(result.get("slo") or "")
    if not goodput or list(slos) == [leading(slos)]:
        return None
    what = "samples" if scenario_named(result["scenario"]).all_at_once else "queries"
    rate = f"{show_rate(goodput['per_s'])} {what}/s, " if goodput["per_s"] is not None else ""
    measured = "" if all(one["of"] for one in goodput["slos"]) else " that was measured"
    return (
        f"{rate}{show_percent(goodput['share'], 1)}{_interval(result)} met every SLO{measured}: "
        f"{', '.join(_one(one) for one in goodput['slos'])}"
    )


def _interval(result: Mapping[str, Any]) -> str:
    """Returns the share's interval in brackets. It assumes that queries do not influence each other."""
    queries, share = result.get("queries") or {}, result["goodput"]["share"]
    count = queries.get("samples_answered", 0) // (queries.get("samples_per_query") or 1)
    if not count:
        return ""
    low, high = share_interval(round(share * count), count)
    return f" ({show_percent(low, 1)} to {show_percent(high, 1)})"


def _one(one: Mapping[str, Any]) -> str:
    slo = parse_slo(one["slo"])
    bound = write_duration(slo.bound_ns)
    if not one["of"]:
        return f"{slo.name} not measured"
    if one["value_ns"] is None:
        return f"{slo.name} {'within' if one['met'] else 'above'} {bound}"
    return f"{slo.name} {show_ns(one['value_ns'])} of {bound}{'' if one['met'] else ', missed'}"
