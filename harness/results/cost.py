"""Computes the `cost` section of result.json from --price and the run's length. Has no side effects."""

from typing import Any

from harness.core.units import NS_PER_S, show_percent, show_rate
from harness.results.schema.client import Tokens
from harness.results.schema.performance import Cost, CostParts
from harness.results.tokens.phases import Phases

S_PER_HOUR = 3600
MILLION = 1_000_000


def section(
    price: float | None,
    window_ns: tuple[int, int] | None,
    samples: int,
    tokens: Tokens | None,
    phases: Phases | None = None,
) -> Cost | None:
    """Returns the section `cost`; None without a price or if the run is incomplete.

    window_ns: start and end of LoadGen's window. samples: number of answered samples. phases: shares of the window by
    phase of the requests; None if unknown.
    """
    if price is None or window_ns is None or not samples:
        return None
    begin, end = window_ns
    total = price * (end - begin) / NS_PER_S / S_PER_HOUR
    sent, made = (tokens["input"], tokens["output"]) if tokens is not None else (None, None)
    both = sent + made if sent is not None and made is not None else None
    found: Cost = {
        "per_hour": price,
        "total": total,
        "per_million_samples": total / samples * MILLION,
        "per_million_input_tokens": _per_million(total, sent),
        "per_million_output_tokens": _per_million(total, made),
        "per_million_tokens": _per_million(total, both),
    }
    if phases is not None:
        found["parts"] = _parts(total, tokens, phases)
    return found


def _parts(total: float, tokens: Tokens | None, phases: Phases) -> CostParts:
    input_, output = total * phases.input, total * phases.output
    return {
        "input": input_,
        "output": output,
        "idle": total * phases.idle,
        "per_million_computed_input_tokens": _per_million(input_, computed(tokens)),
        "per_million_output_tokens": _per_million(output, tokens["output"] if tokens else None),
    }


def computed(tokens: Tokens | None) -> int | None:
    """Returns the number of prompt tokens that the server did not take from its cache; None if unknown."""
    if tokens is None or tokens["input"] is None:
        return None
    return tokens["input"] - (tokens.get("cached") or 0)


def _per_million(total: float, count: int | None) -> float | None:
    return total / count * MILLION if count else None


def shown(cost: dict[str, Any] | None) -> str | None:
    """Returns the cost as one line below the headline; None without a cost."""
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
    return f"{', '.join(words)}, at {show_rate(cost['per_hour'])} per hour{_parts_text(cost)}"


def _parts_text(cost: dict[str, Any]) -> str:
    parts, total = cost.get("parts"), cost["total"]
    if not parts or not total:
        return ""
    names = {"input": "before the first token", "output": "after it", "idle": "idle"}
    shares = (f"{show_percent(parts[key] / total)} {name}" for key, name in names.items())
    return f" ({', '.join(shares)})"
