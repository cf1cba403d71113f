"""Groups doubts by part of the run, and picks one piece of advice. Has no side effects."""

from collections.abc import Mapping, Sequence

from harness.core.codes import CODES, About, without_markup

Entries = Sequence[Mapping[str, str]]
"""`reasons` or `doubts` of result.json."""

_GRAVEST_FIRST = (
    *(About.MACHINE, About.SETTINGS, About.CLOCK, About.LOAD_GENERATOR, About.LOAD),
    *(About.MODEL, About.ACCURACY),
)
"""Parts of a run, in the order in which their advice is given. The machine comes first: a disturbance explains most
other doubts.
"""

CAUSES = ("busy-machine", "steal", "throttled")
"""Codes of doubts about the machine that explain the other doubts about the machine."""

_FIRST = ("not-saved", "server-gone")
"""Codes of reasons that explain all other reasons and doubts."""


def grouped(doubts: Entries) -> str | None:
    """Returns the codes by part, such as `machine (busy-machine, preempted), model (padded)`; None without doubts."""
    groups: dict[str, list[str]] = {}
    for code in dict.fromkeys(doubt["code"] for doubt in doubts):
        known = CODES.get(code)
        groups.setdefault(known.about if known else "other", []).append(code)
    return ", ".join(f"{about} ({', '.join(codes)})" for about, codes in groups.items()) or None


def disturbance(doubts: Entries) -> Mapping[str, str] | None:
    """Returns the doubt about the machine that explains the other doubts; None if no doubt does."""
    found = {d["code"]: d for d in _unexpected(doubts) if _about(d) == About.MACHINE}
    return next((found[code] for code in (*CAUSES, *found) if code in found), None)


def advice(reasons: Entries, doubts: Entries) -> str | None:
    """Returns advice for the first reason or, if the run has no reasons, for the most serious doubt.

    On a disturbed machine, a missed bound does not prove that the load was too high, so the machine comes first. Too
    few queries are an exception, because their number does not depend on the machine's state.
    """
    causes = [reason for code in _FIRST for reason in reasons if reason["code"] == code]
    if causes:
        return _advice(causes[0])
    disturbed = disturbance(doubts)
    is_load = all(
        _about(reason) == About.LOAD and reason["code"] != "early-stopping" for reason in reasons
    )
    if reasons and not (disturbed and is_load):
        return _advice(reasons[0])
    if disturbed and reasons:
        return (
            f"{_advice(disturbed)} If it misses the bound again, lower the load or raise the bound."
        )
    if disturbed:
        return _advice(disturbed)
    own = _unexpected(doubts)
    ranked = [doubt for about in _GRAVEST_FIRST for doubt in own if _about(doubt) == about]
    return next(filter(None, map(_advice, [*ranked, *own])), None)


def _unexpected(doubts: Entries) -> Entries:
    """Returns the doubts without `preempted` if a server on this machine takes cores from the client."""
    is_local = any(doubt["code"] == "loopback" for doubt in doubts)
    return [doubt for doubt in doubts if not (is_local and doubt["code"] == "preempted")]


def _about(entry: Mapping[str, str]) -> About | None:
    """Returns the part of the run that the code describes; None if this version does not know the code."""
    known = CODES.get(entry["code"])
    return known.about if known else None


def _advice(entry: Mapping[str, str]) -> str | None:
    """Returns the code's advice without Markdown."""
    known = CODES.get(entry["code"])
    return without_markup(known.advice) if known else None
