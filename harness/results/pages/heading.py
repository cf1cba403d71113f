"""Makes the heading of the page of a run or a study, with the badges of the verdict."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from harness.results.pages.page import badge, counted_codes


class Badges(NamedTuple):
    """The badges of a run or study."""

    verdict: str = ""
    """VALID if the result may be quoted, INVALID if not; "" if the study judges no runs."""
    doubted: bool = False
    """Whether the page names reasons to doubt the result."""

    @property
    def words(self) -> Sequence[str]:
        return [word for word in (self.verdict, "DOUBT" if self.doubted else "") if word]


def subject(model: str, dataset: str) -> str:
    """Returns the model and its dataset; a model and dataset of one name are named once."""
    return model if model == dataset else f"{model} on {dataset}"


def workload(content: Mapping[str, Any]) -> list[str]:
    """Returns the words that name a workload, in the order of all pages. content: a result, or the file of a study."""
    model = str(content["model"])
    words = (
        subject(model, content.get("dataset") or model),
        content["scenario"],
        content["backend"],
    )
    return [*map(str, words)]


def task(content: Mapping[str, Any]) -> list[str]:
    """Returns the words of the workload and its SLO. content: the file of a study."""
    return [*workload(content), *filter(None, [content.get("slo")])]


def heading(words: Iterable[str], judged: Badges, doubts: Sequence[str] = ()) -> str:
    """Returns the heading with its badges. words: the kind of study and what it measured, not escaped. doubts: codes of
    a run's doubts, which a chip counts and explains.
    """
    title = escape(" · ".join(filter(None, words)))
    chip = counted_codes(doubts, "doubt", "uncertain")
    return f"<h1>{' '.join([*map(badge, judged.words), *filter(None, [chip]), title])}</h1>"


def verdict_of(runs: Iterable[Mapping[str, Any]]) -> str:
    """Returns VALID if any of the study's runs is VALID, INVALID if none is, and "" without runs."""
    verdicts = [run["verdict"] for run in runs]
    if not verdicts:
        return ""
    return "VALID" if "VALID" in verdicts else "INVALID"


def is_doubted(runs: Iterable[Mapping[str, Any]]) -> bool:
    """Returns whether a VALID run of the study has a doubt. INVALID runs are not part of the result."""
    return any(run["verdict"] == "VALID" and run["doubts"] for run in runs)
