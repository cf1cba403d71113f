"""Groups doubts by the part of the run that they are about, and picks one piece of advice. Pure."""

import re
from collections.abc import Mapping, Sequence

from harness.core.codes import CODES, About

Entries = Sequence[Mapping[str, str]]
"""`reasons` or `doubts` of result.json."""

_GRAVEST_FIRST = (
    *(About.MACHINE, About.SETTINGS, About.CLOCK, About.LOAD_GENERATOR, About.LOAD),
    *(About.MODEL, About.ACCURACY),
)
"""A disturbed machine explains most of the others, so its advice comes before theirs."""

_CAUSES = ("busy-machine", "steal", "throttled")
"""Doubts about the machine that explain the others about it."""

_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def grouped(doubts: Entries) -> str | None:
    """Returns the codes by part, e.g. `machine (busy-machine, preempted), model (padded)`; None without doubts."""
    groups: dict[str, list[str]] = {}
    for code in dict.fromkeys(doubt["code"] for doubt in doubts):
        known = CODES.get(code)
        groups.setdefault(known.about if known else "other", []).append(code)
    return ", ".join(f"{about} ({', '.join(codes)})" for about, codes in groups.items()) or None


def disturbance(doubts: Entries) -> Mapping[str, str] | None:
    """The doubt about the machine that explains the others; None without one."""
    found = {d["code"]: d for d in doubts if _about(d) == About.MACHINE}
    return next((found[code] for code in (*_CAUSES, *found) if code in found), None)


def advice(reasons: Entries, doubts: Entries) -> str | None:
    """The next step: of the first reason, else of the gravest doubt.

    A load that was too high on a disturbed machine says nothing about the load: the machine comes first.
    """
    unsaved = [reason for reason in reasons if reason["code"] == "not-saved"]
    if unsaved:  # the others may follow from it
        return _advice(unsaved[0])
    disturbed = disturbance(doubts)
    if reasons and not (disturbed and all(_about(reason) == About.LOAD for reason in reasons)):
        return _advice(reasons[0])
    if disturbed:
        return _advice(disturbed)
    ranked = [doubt for about in _GRAVEST_FIRST for doubt in doubts if _about(doubt) == about]
    return next(filter(None, map(_advice, [*ranked, *doubts])), None)


def _about(entry: Mapping[str, str]) -> About | None:
    """None for a code of another version."""
    known = CODES.get(entry["code"])
    return known.about if known else None


def _advice(entry: Mapping[str, str]) -> str | None:
    """The code's advice without Markdown."""
    known = CODES.get(entry["code"])
    return _LINK.sub(r"\1", known.advice).replace("`", "") if known else None
