"""Compares a run with the reference dispatcher to judge whether the load generator held the run back. Has no side
effects.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Any

from harness.core.units import show_ns, show_percent, show_rate

TIGHT = 1.15
"""If the run's number is at most this many times the reference's, the load generator did not hold the run back."""

_MODELS_STAGE = "infer"
_DISTURBED = "the machine was disturbed, and may have delayed the load generator"


class Judgement(Enum):
    """Result of comparing the run with a load generator that costs nothing (harness/results/evidence/reference.py)."""

    AS_FAST = "the load generator was not the bottleneck"
    HELD_BACK = "the load generator was the bottleneck"
    MODEL_SLOWER = "the model itself was slower in the run than in the bare loops"
    UNKNOWN = "the bare loops were disturbed, or there are none"


def judged(section: Mapping[str, Any]) -> Judgement:
    """Judges the section `reference` of result.json; returns UNKNOWN for an empty section."""
    if "ratio" not in section:
        return Judgement.UNKNOWN
    worse = _times_worse(section["ratio"], section["unit"])
    if _is_drift(section) or worse < 1 / TIGHT:
        return Judgement.UNKNOWN
    if worse <= TIGHT:
        return Judgement.AS_FAST
    if _is_models_speed(section) or most_lost(section)[:1] == [_MODELS_STAGE]:
        return Judgement.MODEL_SLOWER
    return Judgement.HELD_BACK


def most_lost(section: Mapping[str, Any]) -> list[str]:
    """Returns the two stages that exceed the reference by the most time, in descending order; [] in Offline."""
    lost_ns = section.get("lost_ns", {})
    most = sorted(lost_ns, key=lost_ns.__getitem__, reverse=True)[:2]
    return [stage for stage in most if lost_ns[stage] > 0]


def line(
    section: Mapping[str, Any], rate_per_s: float | None, *, was_disturbed: bool = False
) -> str:
    """Returns the comparison with all numbers. section: `reference` of result.json. rate_per_s: completed rate.

    was_disturbed: whether the machine limited the run, which may explain the delays.
    """
    if "reason" in section:
        return f"no reference: {section['reason']}"
    show = show_ns if section["unit"] == "ns" else _show_rate
    ratio = section["ratio"]
    some = section.get("queries", 0) < section.get("of_queries", 0)
    of = f" of the first {section['queries']:,} queries" if some else ""
    # LoadGen's own percentile counts from its clock, and differs by a few us.
    source = " by the journal" if section["unit"] == "ns" else ""
    times = f"{ratio:,.0f}" if ratio >= 1000 else f"{ratio:.3g}"
    numbers = (
        f"{section['what']}{of} {show(section['ours'])}{source}, against {show(section['reference'])} with a cost-free load "
        f"generator ({times} x)"
    )
    ceiling, ceiling_per_s = "", section["null_backend_per_s"]
    if ceiling_per_s and rate_per_s:
        factor = ceiling_per_s / rate_per_s
        ceiling = f"; the null backend reaches {_show_rate(ceiling_per_s)} here, {factor:.0f} x"
    return f"{numbers}: {_sentence(section, was_disturbed)}{ceiling}"


def _sentence(section: Mapping[str, Any], was_disturbed: bool) -> str:
    judgement = judged(section)
    if judgement is Judgement.AS_FAST:
        return str(judgement.value)
    if _is_drift(section):
        more = "more" if section["drift"] > 0 else "less"
        drift = show_percent(abs(section["drift"]))
        return f"not decidable, because a batch took {drift} {more} time after the run than before"
    if judgement is Judgement.UNKNOWN:
        return "not decidable, because the bare loops were slower than the run itself"
    if _is_models_speed(section):
        slowed = section["at_run_speed"]
        show = show_ns if section["unit"] == "ns" else _show_rate
        return (
            f"not decidable: at the model's speed in the run, such a load generator would reach "
            f"{show(slowed['reference'])}, and the run reaches {slowed['ratio']:.3g} times this value"
        )
    return _bottleneck(section, _DISTURBED if was_disturbed else Judgement.HELD_BACK.value)


def _is_drift(section: Mapping[str, Any]) -> bool:
    """Returns whether slower bare loops before or after the run explain the ratio."""
    slower = section.get("at_slower_loops")
    return slower is not None and _times_worse(slower["ratio"], section["unit"]) <= TIGHT


def _is_models_speed(section: Mapping[str, Any]) -> bool:
    """Returns whether the model's speed during the run explains the ratio."""
    return _times_worse(section["at_run_speed"]["ratio"], section["unit"]) <= TIGHT


def _times_worse(ratio: float, unit: str) -> float:
    """Returns how many times worse the run is than the reference. ratio: the run's number divided by the reference's."""
    return ratio if unit == "ns" else 1 / ratio


def _bottleneck(section: Mapping[str, Any], verdict: str) -> str:
    """Returns the verdict with the two stages that lost the most. If one of these stages is `infer`, the model lost
    that time.
    """
    lost_ns = section.get("lost_ns", {})
    lost = {
        name: f"{show_ns(lost_ns[name])} more in {name.replace('_', ' ')}"
        for name in most_lost(section)
    }
    if next(iter(lost), "") == _MODELS_STAGE:
        whom = slowest(section)
        return f"the model itself was slower in the run: {whom and f'in {whom}, '}{', '.join(lost.values())}"
    models = lost.pop(_MODELS_STAGE, "")
    whom = slowest(section)
    own = f"; {whom and f'in {whom}, '}{', '.join(lost.values())}" if lost else ""
    also = f"; the model itself: {models}" if models else ""
    return f"{verdict}{own}{also}"


def slowest(section: Mapping[str, Any]) -> str:
    """Returns which queries `lost_ns` averages over, such as `the slowest 1 %`; '' in streams, which use medians."""
    if "queries" not in section:
        return ""
    return f"the slowest {100 - float(section['what'].removeprefix('p')):.4g} %"


def _show_rate(per_s: float) -> str:
    return f"{show_rate(per_s)}/s"
