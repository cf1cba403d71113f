"""Derives doubts about a language model's server from all of its answers together: copies, random answers, ignored
fields. Has no side effects.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from harness.core.codes import Reason
from harness.core.units import NS_PER_MS, show_ns, show_percent
from harness.remote import Sign
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.input_probe import prompts
from harness.results.schema.performance import NotProbed, PromptProbe

FEWEST = 20
"""A sign is judged only with at least this many answers or repetitions, because a share of a smaller number means
nothing.
"""

VARIED_SHARE = 0.10
"""The run gets a doubt if more than this share of repeated prompts gets answers that begin differently. Batches of
different sizes change a few answers.
"""

ALIKE_SHARE = 0.50
FEWEST_ALIKE = 10

NAMED_AGAIN_SHARE = 0.10
"""The run gets a doubt if more than this share of the server's replies repeats the id of an earlier reply. One known
server draws its ids from only 999 numbers.
"""

IGNORED_SHARE = 0.10
SECOND_OVER_FIRST, SECOND_OVER_OTHERS = 2.0, 4.0
LEAST_SECOND_NS = NS_PER_MS
"""The run gets a doubt if the time to the second token exceeds all three limits: SECOND_OVER_FIRST times the time to
the first token, SECOND_OVER_OTHERS times the time between later tokens, and LEAST_SECOND_NS.
"""

CACHED_RATIO = 1.5

COUNT_SHARES = {Sign.FEWER: 0.05, Sign.UNSEEN: 0.25, Sign.LATE_COUNT: 0.25, Sign.REPEATED: 0.25}
NO_ANSWER_SHARE = 0.05
"""The run gets a doubt if more than `COUNT_SHARES[sign]` of the answers show a sign, or if more than NO_ANSWER_SHARE of
the answers end during the reasoning. Chance and unusual prompts produce a few such answers.
"""

COUNTED_SHARE = 0.5
"""The run gets a doubt if the server's metrics page counts less than this share of the tokens in the server's replies.
"""

TAIL_SHARE = 0.25
"""The run gets a doubt if the tokens without text arrived at once in more than this share of the streams that contain
such tokens. ignore_eos forces a model to generate them.
"""

FEWEST_ROWS = 5
CUT_SHARE = 0.05
"""The run gets a doubt if a larger share of the answers ended at the default of `max_tokens`."""

HIT_SHARE = 0.05
"""The run gets a doubt if the server's metrics page shows a larger share of cached prompt tokens than HIT_SHARE
although the replies report none. The page is judged only with at least FEWEST_ROWS readings.
"""


def counts(counted: Mapping[str, Any]) -> Iterator[str]:
    """Yields signs that the token counts are wrong. counted: `tokens` from the measured process's last message."""
    for sign, most in COUNT_SHARES.items():
        found = counted.get("signs", {}).get(sign, 0)
        if found and found > most * counted["answers"]:
            yield f"{sign} ({found:,} of {counted['answers']:,} answers)"
    tails, at_once = counted.get("tails", 0), counted.get("tails_at_once", 0)
    if at_once > TAIL_SHARE * tails:
        yield f"the tokens without text took no time ({at_once:,} of {tails:,} answers)"


def doubts(run: Evidence, counted: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Reason]:
    """Yields the doubts. counted: `tokens` from the measured process's last message. about: the plug-in's description
    of the server.
    """
    if not counted.get("cached_answers"):
        yield from _measured_cache(prompts((run.ended or {}).get("prompts")))
    yield from _copies(counted, ignores_end=about.get("ignore_eos") == "on")
    yield from _ignored(counted)
    yield from _early(run, counted.get("streams") or {})
    yield from _other_model(about)
    yield from _cut(run, counted, about)
    unfinished = counted.get("signs", {}).get(Sign.NO_ANSWER, 0)
    if unfinished and unfinished > NO_ANSWER_SHARE * counted["answers"]:
        yield Reason(
            "reasoning-cut",
            f"{unfinished:,} of {counted['answers']:,} answers end during or right after their reasoning, although the server "
            "reports that the model ended them",
        )


def _cut(run: Evidence, counted: Mapping[str, Any], about: Mapping[str, Any]) -> Iterator[Reason]:
    """Yields a doubt if many answers ended at a `max_tokens` that nobody chose: rates and costs then describe shorter
    answers than the users' answers.
    """
    is_chosen = about.get("max_tokens_from") != "default" or about.get("ignore_eos") == "on"
    if run.done is None or is_chosen or "tokens" not in run.done.columns:
        return
    # A prompt may have its own limit.
    full = int(np.count_nonzero(run.done.columns["tokens"] == about["max_tokens"]))
    cut = min(full, counted.get("finish_reasons", {}).get("length", 0))
    if cut and cut > CUT_SHARE * counted["answers"]:
        yield Reason(
            "answers-cut",
            f"{cut:,} of {counted['answers']:,} answers ended at {about['max_tokens']} tokens, the default of "
            "max_tokens: set --backend-option max_tokens=N as your users do",
        )


def varied(counted: Mapping[str, Any]) -> Iterator[Reason]:
    """Judges the answers in a run whose requests do not ask the server to draw tokens at random."""
    repeated, differing = counted.get("repeated_answers", 0), counted.get("varied_answers", 0)
    if repeated >= FEWEST and differing > VARIED_SHARE * repeated:
        yield Reason(
            "answers-vary",
            f"{differing:,} of {repeated:,} repeated prompts got an answer that begins differently from the first "
            "answer, although the requests ask for no random sampling: the server ignores `temperature` or `seed`, or mixes up its answers",
        )


def _measured_cache(probe: PromptProbe | NotProbed | None) -> Iterator[Reason]:
    if probe is None or "reason" in probe:
        return
    if probe["refused"]:
        yield Reason(
            "cached",
            "after the run, the server refused a prompt of the run whose words or tokens were put in another order: "
            f"{probe['refused']:.120}",
        )
    for found, what in (
        (probe["over_seen"], "a prompt of the run"),
        (probe["over_again"], "the same prompt again"),
    ):
        if found is not None and found[0] > CACHED_RATIO:
            yield Reason(
                "prefix-cache",
                f"after the run, a prompt with a new beginning took {found[1]:.3g} times as long as {what} (99 % interval "
                f"{found[0]:.3g} to {found[2]:.3g}): the server keeps prompts or answers, and does not report this",
            )
            return


def _copies(counted: Mapping[str, Any], *, ignores_end: bool) -> Iterator[Reason]:
    alike, answered = counted.get("alike_prompts", 0), counted.get("long_answered", 0)
    if alike >= FEWEST_ALIKE and alike > ALIKE_SHARE * answered and not ignores_end:
        yield Reason(
            "answers-alike",
            f"{alike:,} of {answered:,} different prompts with a long answer also got the answer to another prompt",
        )
    for total, same, of in (
        ("named_replies", "same_names", "the reply before"),
        ("named_repeats", "same_names_of_prompt", "the earlier reply to the same prompt"),
    ):
        replies, again = counted.get(total, 0), counted.get(same, 0)
        if replies >= FEWEST and again > NAMED_AGAIN_SHARE * replies:
            yield Reason(
                "ids-repeated",
                f"{again:,} of {replies:,} replies have the id of {of}: they may be copies",
            )
            return


def _ignored(counted: Mapping[str, Any]) -> Iterator[Reason]:
    ignored = []
    asked, missing = counted.get("calling_prompts", 0), counted.get("uncalled_prompts", 0)
    if missing > IGNORED_SHARE * asked:
        ignored.append(f"{missing:,} of {asked:,} prompts that require a tool call got none")
    asked, missing = counted.get("bounded_prompts", 0), counted.get("short_answers", 0)
    if missing > IGNORED_SHARE * asked:
        ignored.append(
            f"{missing:,} of {asked:,} prompts got fewer tokens than ignore_eos or min_tokens demands"
        )
    if ignored:
        yield Reason("fields-ignored", "; ".join(ignored))


def _early(run: Evidence, streams: Mapping[str, Any]) -> Iterator[Reason]:
    second, gaps = streams.get("second_gap_ns"), streams.get("chunk_gap_ns")
    columns = run.done.columns if run.done is not None else {}
    if not second or not gaps or "first_token_ns" not in columns or "sent_ns" not in columns:
        return
    first_ns, sent_ns = columns["first_token_ns"], columns["sent_ns"]
    right = (first_ns > 0) & (columns["failed"] == 0)
    if int(right.sum()) < FEWEST:
        return
    waited_ns = float(np.median((first_ns - sent_ns)[right]))
    least_ns = max(SECOND_OVER_FIRST * waited_ns, SECOND_OVER_OTHERS * gaps["p50"], LEAST_SECOND_NS)
    if second["p50"] > least_ns:
        yield Reason(
            "first-token-early",
            f"half of the streams showed their first token within {show_ns(round(waited_ns))} and their second "
            f"token {show_ns(second['p50'])} later, with {show_ns(gaps['p50'])} between later tokens: the first token may "
            "have been sent before the prompt was computed",
        )


def _other_model(about: Mapping[str, Any]) -> Iterator[Reason]:
    asked, names = about.get("asked_as") or (), about.get("answers_as") or ()
    others = [name for name in names if not _is_known(name, asked)]
    if others:
        yield Reason(
            "other-model",
            f"the requests name the model {' or '.join(map(repr, asked)):.120}, but the replies name {' or '.join(map(repr, others)):.120}",
        )


def _is_known(name: str, asked: Sequence[str]) -> bool:
    """Returns whether the name is a version or path of a requested model, or a requested model is a version or path of
    the name.
    """
    ours = _stem(name)
    return any(ours in _stem(one) or _stem(one) in ours for one in asked)


def _stem(name: str) -> str:
    return name.casefold().rstrip("/").rpartition("/")[2]


def page(
    servers: Mapping[str, Any] | None, counted: Mapping[str, Any] | None, seconds: float
) -> Iterator[Reason]:
    """Compares the replies with the server's metrics page. servers, counted: sections of result.json.

    seconds: length of the run. The page also counts other clients, so it may show more tokens than the replies.
    """
    if not servers or not counted or servers["rows"] < FEWEST_ROWS or seconds <= 0:
        return
    output, page_tokens = counted["output"], servers.get("generated_tokens")
    share = min(1.0, (servers["rows"] - 1) / seconds)
    if output and page_tokens is not None and page_tokens < COUNTED_SHARE * share * output:
        yield Reason(
            "tokens-doubtful",
            f"the server's own metrics page counts {page_tokens:,.0f} generated tokens in {show_percent(share)} of the "
            f"run, but its replies have {output:,} in the whole run",
        )
    hits = servers.get("cache_hit_share")
    if hits is not None and hits > HIT_SHARE and not counted["cached_answers"]:
        yield Reason(
            "prefix-cache",
            f"according to the server's metrics page, {show_percent(hits)} of the prompts' tokens came from its cache",
        )
