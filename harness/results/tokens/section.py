"""Summarises the tokens in a language-model run. Has no side effects."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import numpy as np

from harness.core.otlp.boundaries import SECONDS_NS
from harness.core.stats import percentile_ns
from harness.core.units import NS_PER_S
from harness.results.evidence.evidence import Evidence
from harness.results.evidence.input_probe import prompts
from harness.results.schema.client import GapsSection, Tokens, TokenTimes
from harness.results.tokens import loadgen
from harness.types import Array


def section(run: Evidence) -> Tokens | None:
    """Returns the section of result.json; None if the replies report no tokens or the run did not end by itself."""
    client = run.ended.get("client") if run.ended is not None else None
    told = (client or run.ended or {}).get("tokens")
    if told is None:
        return None
    output, answers, streams = told["output"], told["answers"], told["streams"]
    seconds = _seconds(run)
    sources = " and ".join(sorted(told["sources"])) if output is not None else ""
    first, each = token_times(run.done.columns if run.done is not None else {})
    return {
        "answers": answers,
        "input": told["input"],
        "output": output,
        "source": sources,
        "output_per_s": output / seconds if output is not None and seconds else None,
        "output_mean": output / answers if output is not None else None,
        "cached": told["cached"],
        "cached_answers": told["cached_answers"],
        "distinct_prompts": len(np.unique(run.done.columns["index"])) if run.done else 0,
        "reusable": told.get("reusable"),
        "cache_block_tokens": told.get("block_tokens"),
        "bodies_sha256": told.get("bodies_sha256"),
        "reasoning": told.get("reasoning"),
        "compared_prompts": told["compared_prompts"],
        "changed_prompts": told["changed_prompts"],
        "varied_prompts": told["varied_prompts"],
        "long_prompts": told["long_prompts"],
        "long_answers": told["long_answers"],
        "contradictions": dict(sorted(told["contradictions"].items())),
        "doubts": dict(sorted(told["doubts"].items())),
        "signs": dict(sorted(told.get("signs", {}).items())),
        "repeated_answers": told.get("repeated_answers", 0),
        "varied_answers": told.get("varied_answers", 0),
        "alike_prompts": told.get("alike_prompts", 0),
        "prompt_probe": prompts(run.ended.get("prompts")) if run.ended is not None else None,
        "several_token_answers": streams["several"] if streams else None,
        "at_once_answers": streams["at_once"] if streams else None,
        "is_exact": bool(streams and streams["exact"]),
        "ttft_ns": first,
        "answer_ttft_ns": _answer_ttft_ns(run),
        "tpot_ns": each,
        "itl_ns": cast("TokenTimes | None", streams["itl_ns"]) if streams else None,
        "second_gap_ns": cast("TokenTimes | None", streams.get("second_gap_ns"))
        if streams
        else None,
        "chunk_gap_ns": cast("TokenTimes | None", streams["chunk_gap_ns"]) if streams else None,
        **_gaps(streams),
        "loadgen": loadgen.told(run.log, run.plan, told["one_token_answers"], _failed(run)),
        "tokens_per_chunk": streams["tokens_per_chunk"] if streams else None,
        "one_token_answers": told["one_token_answers"],
        "finish_reasons": dict(sorted(told["finish_reasons"].items())),
    }


def _gaps(streams: Mapping[str, Any] | None) -> GapsSection:
    """Returns the times between chunks as a histogram and by position; empty for a run made by an older version."""
    gaps = streams.get("chunk_gaps") if streams else None
    if streams is None or not gaps or not sum(gaps["counts"]):
        return {}
    bounds_ns = SECONDS_NS.tolist()
    found: GapsSection = {
        "chunk_gaps": {"bounds_ns": bounds_ns, "counts": gaps["counts"], "sum_ns": gaps["sum_ns"]}
    }
    if streams.get("itl_by_position"):
        found["itl_by_position"] = streams["itl_by_position"]
    return found


def _seconds(run: Evidence) -> float:
    """Returns the time from the first scheduled query to the last answer."""
    done = run.done
    if not done:
        return 0.0
    begin, end = done.columns["scheduled_ns"].min(), done.columns["completed_ns"].max()
    return float(end - begin) / NS_PER_S


def _failed(run: Evidence) -> int:
    return run.done.failed if run.done is not None else 0


def token_times(columns: Mapping[str, Array]) -> tuple[TokenTimes | None, TokenTimes | None]:
    """Returns the percentiles of TTFT and TPOT. columns: as for `times_ns`."""
    if (found := times_ns(columns)) is None:
        return None, None
    ttft_ns, tpot_ns = found
    return percentiles_ns(ttft_ns), percentiles_ns(tpot_ns)


class AnswerTimes(NamedTuple):
    """One kind of token time, by answer."""

    has_time: Array
    """(answers,) bool: whether an answer has this time."""
    times_ns: Array
    """Times of these answers, in the order of the journal."""


def times_ns(columns: Mapping[str, Array]) -> tuple[Array, Array] | None:
    """Returns the times of `by_answer` without their answers; None without streams."""
    found = by_answer(columns)
    return (found["ttft"].times_ns, found["tpot"].times_ns) if found else None


def by_answer(columns: Mapping[str, Array]) -> Mapping[str, AnswerTimes]:
    """Returns the TTFT (`ttft`) of each answer that did not fail, and the TPOT (`tpot`) of each such answer with several
    tokens; {} without streams.

    columns: columns of the journal's answers.
    """
    if "first_token_ns" not in columns:
        return {}
    first_ns, tokens = columns["first_token_ns"], columns["tokens"].astype(np.int64)
    right = (first_ns > 0) & (columns["failed"] == 0)
    several = right & (tokens > 1)
    since_ns = columns["completed_ns"] - first_ns
    return {
        "ttft": AnswerTimes(right, (first_ns - columns["scheduled_ns"])[right]),
        "tpot": AnswerTimes(several, since_ns[several] // (tokens[several] - 1)),
    }


def _answer_ttft_ns(run: Evidence) -> TokenTimes | None:
    """Returns the time to the first token after the reasoning, for samples that have such a token."""
    columns = run.done.columns if run.done is not None else {}
    if "answer_token_ns" not in columns:
        return None
    answer_ns = columns["answer_token_ns"]
    right = (answer_ns > 0) & (columns["failed"] == 0)
    return percentiles_ns((answer_ns - columns["scheduled_ns"])[right])


def percentiles_ns(values_ns: Array) -> TokenTimes | None:
    """Returns the percentiles of the values; None without values."""
    if not len(values_ns):
        return None
    ordered = np.sort(values_ns)
    p50, p90, p99 = (percentile_ns(ordered, share) for share in (0.50, 0.90, 0.99))
    return {"p50": p50, "p90": p90, "p99": p99}
