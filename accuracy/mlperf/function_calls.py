"""Scores function calls according to the Berkeley Function Calling Leaderboard (BFCL), like MLPerf's edge-agentic
benchmark.
"""

from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from harness.accuracy.parts.calls.calls_in import Call, calls_in, json_of, tool_calls
from harness.accuracy.parts.calls.check import are_right
from harness.types import Answer, Metric, Score

SIMPLE = ("simple_python", "simple_java", "simple_javascript")
NON_LIVE = (*SIMPLE, "multiple", "parallel", "parallel_multiple")
LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
HALLUCINATION = ("irrelevance", "live_irrelevance")
"""BFCL's subsets, by category. In the subsets of HALLUCINATION, the correct answer is to call no function."""

RELEVANCE = "live_relevance"
"""Subset in which an answer is correct if it calls any function."""

SUBSETS = (*NON_LIVE, *LIVE, *HALLUCINATION, RELEVANCE)


class FunctionCalls:
    """Percentage of samples whose answers contain the correct function calls.

    An answer is a list of tool calls in OpenAI's JSON format, or text. A label is a mapping with `subset` (one of
    SUBSETS), `functions` (offered to the model) and `right` (the correct calls), as in BFCL's files.
    Source: mlcommons/endpoints, evaluation/bfcl_v4_scorer.py.
    """

    def __init__(self, dtype: str) -> None:
        if dtype != "uint8":
            raise ValueError(
                f"function-calls needs text, but the answers are {dtype}: add --backend-option answer=calls"
            )

    def score(self, answers: Iterable[Answer], labels: Mapping[int, Any]) -> Score:
        shares: dict[str, list[bool]] = {}
        for index, payload in answers:
            label = labels[index]
            text = payload.rstrip(b"\0").decode(errors="replace")
            shares.setdefault(label["subset"], []).append(_is_right(text, label))
        means = {subset: fmean(right) for subset, right in shares.items()}
        categories = _categories(means, {subset: len(right) for subset, right in shares.items()})
        every = [right for rights in shares.values() for right in rights]
        value, normalised = 100 * fmean(every), 100 * fmean(categories.values() or [0.0])
        percent = {name: 100 * share for name, share in {**categories, **means}.items()}
        shown = {"Total": value, "normalized_single_turn": normalised}
        return Score(
            metric="function-calls",
            value=value,
            unit="%",
            samples=len(every),
            line=str({name: round(share, 4) for name, share in shown.items()}),
            details={"normalised": normalised, **percent},
        )

    def check_labels(self, labels: Mapping[int, object]) -> None:
        for index, label in labels.items():
            subset = label.get("subset") if isinstance(label, Mapping) else None
            if subset not in SUBSETS:
                raise ValueError(
                    f"the label of sample {index} does not name a BFCL subset: use --dataset function-calls"
                )


def _is_right(text: str, label: Mapping[str, Any]) -> bool:
    subset = label["subset"]
    if subset in (*HALLUCINATION, RELEVANCE):
        return bool(tool_calls(text)) is (str(subset) == RELEVANCE)
    try:
        calls = [_with_arguments(call) for call in calls_in(text)]
    except (TypeError, ValueError):  # a call contains a value that JSON cannot express
        return False
    if not label["right"]:
        return not calls
    return are_right(label["functions"], calls, label["right"], subset)


def _with_arguments(call: Call) -> Call:
    """Returns the call with its arguments parsed. Omits the arguments if they are a string that is not JSON."""
    if not isinstance(call.arguments, str):
        return call
    return call._replace(arguments=json_of(call.arguments, {}))


def _categories(means: Mapping[str, float], counts: Mapping[str, int]) -> dict[str, float]:
    """Returns the share of correct answers in each category.

    The simple subsets are first combined into one subset. In the live category, every sample has the same weight,
    regardless of its subset.
    """
    found = {}
    simple = [means[subset] for subset in SIMPLE if subset in means]
    if non_live := [*([fmean(simple)] if simple else []), *_of(means, NON_LIVE[len(SIMPLE) :])]:
        found["non_live"] = fmean(non_live)
    if live := [subset for subset in LIVE if subset in means]:
        weights = [counts[subset] for subset in live]
        found["live"] = fmean([means[subset] for subset in live], weights)
    if hallucination := _of(means, HALLUCINATION):
        found["hallucination"] = fmean(hallucination)
    return found


def _of(means: Mapping[str, float], subsets: Sequence[str]) -> list[float]:
    return [means[subset] for subset in subsets if subset in means]


_: type[Metric] = FunctionCalls
