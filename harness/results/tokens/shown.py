"""Describes a run's tokens in one line of the answer."""

from collections.abc import Iterator, Mapping
from typing import Any

from harness.core.units import show_ns, show_percent, show_rate

TIMES = {
    "ttft_ns": "TTFT",
    "answer_ttft_ns": "TTFT of the answer",
    "tpot_ns": "TPOT",
    "itl_ns": "ITL",
}


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns tokens/s, then the p50 and p99 of each known time; None without tokens or if the answers are sound."""
    tokens = result.get("tokens")
    if not tokens or result.get("media"):
        return None
    if not tokens["answers"]:
        return "none: no answer was read"
    per_s = tokens["output_per_s"]
    some = tokens.get("tpot_ns") or tokens.get("one_token_answers")
    unknown = "some answers not counted by the server" if some else "not counted by the server"
    count = f"{show_rate(per_s)} tokens/s" if per_s is not None else unknown
    times = [
        f"{name} {show_ns(tokens[key]['p50'])} / {show_ns(tokens[key]['p99'])}"
        for key, name in TIMES.items()
        if tokens.get(key) is not None
    ]
    if times:
        times[-1] += " (p50 / p99)"
    return ", ".join([count, *times, *cached(result)])


def cached(result: Mapping[str, Any]) -> Iterator[str]:
    """Yields the share of prompt tokens that came from the server's cache, and the largest possible share.

    `reusable` counts every prompt that was sent, so the possible share is unknown if some prompts were not answered.
    The count assumes blocks of `cache_block` tokens, and a server with smaller blocks can reuse more.
    """
    tokens = result["tokens"]
    kept, allowed, whole = (tokens.get(key) for key in ("cached", "reusable", "input"))
    if kept is None or allowed is None or not whole:
        return
    if tokens["answers"] < ((result.get("queries") or {}).get("samples_issued") or 0):
        return
    possible = f"{show_percent(allowed / whole, 1)} possible"
    if kept > allowed:
        block = tokens.get("cache_block_tokens")
        size = f" of {block} tokens" if block else ""
        possible = f"more than {show_percent(allowed / whole, 1)} possible with blocks{size}: the server's blocks are probably smaller than cache_block"
    yield f"{show_percent(kept / whole, 1)} of the prompt tokens cached ({possible})"
