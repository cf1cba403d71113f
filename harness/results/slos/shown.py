"""Describes a run's goodput and all its SLOs in one line."""

from collections.abc import Mapping
from typing import Any, TypedDict

from harness.core.config.parse import leading, parse_slo, parse_slos
from harness.core.stats import share_interval
from harness.core.units import show_duration, show_ns, show_rate, show_share
from harness.loadgen.scenario import scenario_named
from harness.results.slos.judged import Judged


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns the goodput and the SLOs in one line; None without SLOs, or if the only SLO bounds the answer's latency."""
    goodput = result.get("goodput")
    if not goodput or not has_several(result.get("slo")):
        return None
    what = "samples" if scenario_named(result["scenario"]).all_at_once else "queries"
    per_s = goodput["per_s"]
    rate = f"{show_rate(per_s)} {what}/s, " if per_s is not None else ""
    measured = "" if all(one["of"] for one in goodput["slos"]) else " that was measured"
    known = any(one.get("unknown") for one in goodput["slos"])
    return (
        f"{rate}{met_text(attainment(result))} {'are known to have met' if known else 'met'} every SLO{measured}: "
        f"{', '.join(_one(one) for one in goodput['slos'])}"
    )


def has_several(slos: str | None) -> bool:
    """Returns whether the SLOs bound more than the answer's latency. slos: as in result.json."""
    parsed = parse_slos(slos or "")
    return bool(parsed) and list(parsed) != [leading(parsed)]


class Attainment(TypedDict, total=False):
    met_share: float | None
    """Share of the queries that met every SLO; None if no SLO is set."""
    met_low: float | None
    met_high: float | None
    """Ends of the share's 95 % interval, which assumes that queries do not influence each other."""


def attainment(result: Mapping[str, Any]) -> Attainment:
    share, queries = (result.get("goodput") or {}).get("share"), result.get("queries") or {}
    count = queries.get("samples_answered", 0) // (queries.get("samples_per_query") or 1)
    low, high = (
        share_interval(round(share * count), count) if share is not None and count else (None, None)
    )
    return {"met_share": share, "met_low": low, "met_high": high}


def met_text(met: Mapping[str, Any]) -> str:
    """Returns the share and its interval in brackets; "" without a share. met: output of `attainment`."""
    if met.get("met_share") is None:
        return ""
    text = show_share(met["met_share"])
    if met.get("met_low") is None:
        return text
    return f"{text} ({show_share(met['met_low'])} to {show_share(met['met_high'])})"


def _one(one: Mapping[str, Any]) -> str:
    slo = parse_slo(one["slo"])
    bound = show_duration(slo.bound_ns)
    unknown = one.get("unknown", 0)
    if one["of"] == unknown:
        return f"{slo.name} not measured"
    if one["value_ns"] is None:
        return f"{slo.name} {'within' if one['met'] else 'above'} {bound}"
    text = f"{slo.name} {show_ns(one['value_ns'])} of {bound}"
    if unknown and Judged(slo, one["late"], one["of"], one["value_ns"]).is_met:
        return f"{text}, {unknown:,} of {one['of']:,} answers not counted"
    return text if one["met"] else f"{text}, missed"
