"""Makes the heading of the page of a run or a study, with the badges of the verdict."""

from collections.abc import Iterable, Mapping
from html import escape
from typing import Any

from harness.results.pages.page import badge


def heading(words: Iterable[str], verdict: str = "", *, doubted: bool = False) -> str:
    """Returns the heading with its badges. words: the kind of study and what it measured, not escaped.

    verdict: VALID if the result may be quoted, INVALID if not; "" if the study judges no runs. doubted: whether the
    page names reasons to doubt the result.
    """
    title = escape(" · ".join(filter(None, words)))
    return f"<h1>{' '.join(filter(None, (badges(verdict, doubted=doubted), title)))}</h1>"


def badges(verdict: str, *, doubted: bool) -> str:
    """Returns the badges of a verdict as HTML. verdict, doubted: as in `heading`."""
    return " ".join(badge(word) for word in (verdict, "DOUBT" if doubted else "") if word)


def verdict_of(runs: Iterable[Mapping[str, Any]]) -> str:
    """Returns VALID if any of the study's runs is VALID, INVALID if none is, and "" without runs."""
    verdicts = [run["verdict"] for run in runs]
    if not verdicts:
        return ""
    return "VALID" if "VALID" in verdicts else "INVALID"


def is_doubted(runs: Iterable[Mapping[str, Any]]) -> bool:
    """Returns whether a VALID run of the study has a doubt. INVALID runs are not part of the result."""
    return any(run["verdict"] == "VALID" and run["doubts"] for run in runs)
