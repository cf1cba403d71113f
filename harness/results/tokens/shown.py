"""Shows a run's tokens as one line of its answer."""

from collections.abc import Mapping
from typing import Any

from harness.core.units import show_ns, show_rate

_TIMES = {
    "ttft_ns": "TTFT",
    "answer_ttft_ns": "TTFT of the answer",
    "tpot_ns": "TPOT",
    "itl_ns": "ITL",
}


def shown(result: Mapping[str, Any]) -> str | None:
    """Returns tokens/s, then p50 and p99 of each known time; None if the result has no tokens."""
    tokens = result.get("tokens")
    if not tokens:
        return None
    if not tokens["answers"]:
        return "none: no answer was read"
    per_s = tokens["output_per_s"]
    count = f"{show_rate(per_s)} tokens/s" if per_s is not None else "not counted by the server"
    if result.get("media"):
        return _first_sound(tokens)
    times = [
        f"{name} {show_ns(tokens[key]['p50'])} / {show_ns(tokens[key]['p99'])}"
        for key, name in _TIMES.items()
        if tokens.get(key) is not None
    ]
    if times:
        times[-1] += " (p50 / p99)"
    return ", ".join([count, *times])


def _first_sound(tokens: Mapping[str, Any]) -> str | None:
    """Returns the line of answers that are sound, whose first piece counts as the first token."""
    times = tokens["ttft_ns"]
    if times is None:
        return None
    return f"none: first sound {show_ns(times['p50'])} / {show_ns(times['p99'])} (p50 / p99)"
