"""Decides from peak.json whether the model or the machine set the peak."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness.core.codes import About, Kind, codes
from harness.core.config.parse import parse_slo
from harness.core.units import show_ns, show_rate

MACHINE_DOUBTS = codes(Kind.DOUBT, About.MACHINE)

IDLE_SHARE = 0.25
"""Instances that compute for less of the time than this could answer four times the rate. At a peak that
the model sets they do so for 50 % to 90 %: handing out queries takes the rest of two cores.
"""

FAR_BELOW = 10
"""The median latency is so many times shorter than the bound: queries hardly wait for each other."""


def machine_warnings(content: Mapping[str, Any]) -> Iterator[str]:
    """One sentence for each sign that the machine set the peak; none without a peak."""
    if content["peak"] is None:
        return
    run = confirming_run(content)
    if is_idle(run, parse_slo(content["slo"]).bound_ns):
        yield _idle_text(run, content)
    doubted = list(_doubted(content["probes"]))
    near = [run, *(p for p in content["probes"] if p["load"] == content["failed_above"])]
    if any(probe in near for probe in doubted):
        codes = sorted({code for probe in doubted for code in _codes(probe)})
        yield (
            f"the machine was not at rest in {len(doubted)} of {len(content['probes'])} runs "
            f"({', '.join(codes)}): an idle machine may reach a higher rate; stop other programs and "
            "search again"
        )


def set_by_machine(content: Mapping[str, Any]) -> bool:
    """Whether the summary must not call the peak the model's."""
    if content["peak"] is None:
        return False
    return is_idle(confirming_run(content), parse_slo(content["slo"]).bound_ns)


def confirming_run(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """The entry in `probes` of the full-length run that is the peak."""
    runs = (p for p in content["probes"] if p["kind"] == "full" and p["passed"])
    found: Mapping[str, Any] = next(p for p in runs if p["load"] == content["peak"])
    return found


def is_idle(run: Mapping[str, Any], bound_ns: int) -> bool:
    """The instances had time left and queries hardly waited, so the model is not what ended there."""
    busy, p50_ns = run.get("busy_share"), (run["latency_ns"] or {}).get("p50")
    if busy is None or p50_ns is None:
        return False
    return bool(busy < IDLE_SHARE and p50_ns * FAR_BELOW < bound_ns)


def _idle_text(run: Mapping[str, Any], content: Mapping[str, Any]) -> str:
    p50, bound = show_ns(run["latency_ns"]["p50"]), show_ns(parse_slo(content["slo"]).bound_ns)
    able = show_rate(content["peak"] / run["busy_share"])
    return (
        f"this is not the model's peak: its instances computed for {run['busy_share'] * 100:.0f} % of "
        f"the time, with {run['mean_batch']:.1f} samples a batch and a p50 of {p50}, far below the bound "
        f"of {bound}; single delays made the runs above it fail, and the model alone could answer about "
        f"{able} {content['unit']}"
    )


def _doubted(probes: Sequence[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    return (probe for probe in probes if _codes(probe))


def _codes(probe: Mapping[str, Any]) -> frozenset[str]:
    """The doubts about the machine. A load that is too high lets every run drift."""
    doubts = MACHINE_DOUBTS & set(probe["doubts"])
    return doubts if probe["passed"] is not False else doubts - {"drift"}
