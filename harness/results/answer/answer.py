"""Derives the answer of a run from result.json: its number and whether to believe it. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.results.pages.run_table import show_accuracy, show_quantity


class Answer(NamedTuple):
    """Each field is a short plain text without markup."""

    verdict: str
    question: str
    headline: str
    accuracy: str | None
    limited_by: str | None
    doubts: str | None
    advice: str | None


def answer_of(result: Mapping[str, Any]) -> Answer:
    """result: the content of result.json (harness/results/schema/result.py)."""
    headline = result.get("headline")
    return Answer(
        verdict=result["verdict"],
        question=f"{result['scenario']} {result['backend']} {result['model']}",
        headline=show_quantity(headline) if headline else "nothing was measured",
        accuracy=None if result["mode"] == "performance" else show_accuracy(result["accuracy"]),
        limited_by=None,
        doubts=", ".join(doubt["code"] for doubt in result["doubts"]) or None,
        advice=None,
    )
