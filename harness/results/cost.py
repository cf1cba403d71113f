"""Computes `cost` of result.json, from --price and the length of the run. Pure."""

from typing import Any

from harness.core.units import NS_PER_S, show_rate
from harness.results.schema.client import Tokens
from harness.results.schema.performance import Cost

S_PER_HOUR = 3600
MILLION = 1_000_000


def section(
    price: float | None, window_ns: tuple[int, int] | None, samples: int, tokens: Tokens | None
) -> Cost | None:
    """Returns None without a price or a whole run. window_ns: LoadGen's. samples: number of answered samples."""
    if price is None or window_ns is None or not samples:
        return None
    begin, end = window_ns
    total = price * (end - begin) / NS_PER_S / S_PER_HOUR
    sent, made = (tokens["input"], tokens["output"]) if tokens is not None else (None, None)
    both = sent + made if sent is not None and made is not None else None
    return {
        "per_hour": price,
        "total": total,
        "per_million_samples": total / samples * MILLION,
        "per_million_input_tokens": _per_million(total, sent),
        "per_million_output_tokens": _per_million(total, made),
        "per_million_tokens": _per_million(total, both),
    }


def _per_million(total: float, count: int | None) -> float | None:
    return total / count * MILLION if count else None


def shown(cost: dict[str, Any] | None) -> str | None:
    """Returns one line for the answer; None without a cost."""
    if not cost:
        return None
    words = [
        f"{show_rate(cost[key])} per million {name}"
        for key, name in (
            ("per_million_output_tokens", "output tokens"),
            ("per_million_tokens", "tokens"),
            ("per_million_samples", "samples"),
        )
        if cost[key] is not None
    ]
    return f"{', '.join(words)}, at {show_rate(cost['per_hour'])} per hour"
