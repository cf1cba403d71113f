"""Judges the token counts that a server reports for its prompts and answers. Has no side effects."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.codes import Reason
from harness.core.units import show_percent
from harness.results.evidence.evidence import Evidence
from harness.results.verdict import answer_signs

AT_ONCE_SHARE = 0.5
"""The run gets a doubt if more than this share of the streams with several tokens arrived in one chunk."""

HELD_SHARE = 0.9
"""The run gets a doubt if, in more than this share of the streams with several chunks, all chunks arrived at the same
moment.
"""


def client_told(run: Evidence) -> Mapping[str, Any]:
    """Returns `client` from the measured process's last message; empty if it is missing."""
    return (run.ended or {}).get("client") or {}


def reasons(run: Evidence) -> Iterator[Reason]:
    """Yields reasons for token counts that cannot be right and, in an official run, for a prompt cache."""
    told = client_told(run).get("tokens") or {}
    if told.get("cached_answers") and run.plan.model_key is not None:
        yield Reason("prompts-cached", f"{_cached(told)}: the rules prohibit a cache of queries")
    wrong = [*_by_why(told, "contradictions")]
    if told.get("long_answers"):
        wrong.append(f"{told['long_answers']:,} prompts have an answer longer than `max_tokens`")
    if wrong:
        yield Reason("tokens-contradicted", f"the server's token counts: {'; '.join(wrong)}")


def doubts(run: Evidence, about: Mapping[str, Any] | None = None) -> Iterator[Reason]:
    """Yields doubts about token counts. about: the plug-in's description of the server."""
    told = client_told(run).get("tokens") or {}
    if told:
        yield from answer_signs.doubts(run, told, about or {})
    if told.get("cached_answers") and run.plan.model_key is None:
        yield Reason("prefix-cache", _cached(told))
    changed = [*_changed(told)]
    if changed:
        yield Reason("prompt-changed", "; ".join(changed))
    doubted = [*_by_why(told, "doubts"), *answer_signs.counts(told)]
    if doubted:
        yield Reason("tokens-doubtful", f"the server's token counts: {'; '.join(doubted)}")
    yield from _of_streams(told.get("streams") or {})
    unexplained = told.get("finish_reasons", {}).get("")
    if unexplained and not told.get("media_ns"):  # replies with sound have no finish_reason
        text = f"{unexplained:,} of {told['answers']:,} answers have no finish_reason"
        yield Reason("ends-unexplained", f"{text}, so they may be incomplete")


def _by_why(told: Mapping[str, Any], key: str) -> Iterator[str]:
    for why, count in sorted(told.get(key, {}).items()):
        yield f"{why} ({count:,} of {told['answers']:,} answers)"


def _changed(told: Mapping[str, Any]) -> Iterator[str]:
    if told.get("changed_prompts"):
        yield (
            f"the server counts more or fewer tokens than were sent for {told['changed_prompts']:,} of "
            f"{told['compared_prompts']:,} prompts"
        )
    if told.get("short_prompts"):
        yield (
            f"by the server's count, {told['short_prompts']:,} prompts have more bytes per token than any text has: the server may "
            "have cut them off"
        )
    if told.get("long_prompts"):
        yield f"{told['long_prompts']:,} prompts cannot have as many tokens as the server counts"
    if told.get("varied_prompts"):
        yield f"the server's count of a prompt's tokens differed from its first count {told['varied_prompts']:,} times"


def _of_streams(told: Mapping[str, Any]) -> Iterator[Reason]:
    at_once, several = told.get("at_once", 0), told.get("several", 0)
    if at_once > AT_ONCE_SHARE * several:
        yield Reason(
            "tokens-at-once",
            f"{at_once:,} of {several:,} streams with several tokens came in one chunk: their TTFT is the time of the "
            "whole answer, and their TPOT is not the time of a token",
        )
    held, long = told.get("held_back", 0), told.get("long", 0)
    if held > HELD_SHARE * long:
        yield Reason(
            "tokens-at-once",
            f"{held:,} of {long:,} streams with several chunks arrived at one moment: something held the chunks back until "
            "the answer was complete, or a busy client read them late",
        )


def _cached(told: Mapping[str, Any]) -> str:
    share = (
        f", {show_percent(told['cached'] / told['input'], 1)} of all their tokens"
        if (told["cached"] and told["input"])
        else ""
    )
    return (
        f"for {told['cached_answers']:,} of {told['answers']:,} answers, the server had already computed a part of "
        f"the prompt{share}"
    )


def one_token_answers(run: Evidence) -> Iterator[Reason]:
    """Yields a reason if LoadGen cannot handle answers with one token, because LoadGen needs a time for later tokens."""
    told = (client_told(run) or run.ended or {}).get("tokens") or {}
    alone = told.get("one_token_answers", 0)
    if run.plan.token_latencies and alone and run.done is not None:
        yield Reason(
            "one-token-answers",
            f"{alone:,} of {len(run.done):,} answers have one token, but LoadGen needs a second one: drop the SLOs on "
            "token times, or request longer answers, e.g. by --backend-option ignore_eos=on",
        )
