"""Computes the ratios and counts of the two probes that follow a run (input_probe.py and client/prompt_probe.py in
harness/run/measured). Has no side effects.
"""

from collections.abc import Mapping
from typing import Any, cast

import numpy as np

from harness.core.stats import median_interval
from harness.results.schema.performance import InputProbe, NotProbed, PromptProbe
from harness.types import Array

LEVEL = 0.99
"""Confidence level of the ratios' intervals."""


def section(probed: Mapping[str, Any] | None) -> InputProbe | NotProbed | None:
    """Summarises the input probe. probed: `probed` from the last message of the measured process."""
    if probed is None or "reason" in probed:
        return cast("NotProbed | None", probed)
    changed_ns, again_ns, seen_ns = (
        np.asarray(probed[f"{name}_ns"], np.float64) for name in ("changed", "again", "seen")
    )
    return {
        "samples": probed["samples"],
        "rounds": len(changed_ns),
        "changed_ns": float(np.median(changed_ns)) if len(changed_ns) else None,
        "over_again": _ratio(changed_ns, again_ns),
        "over_seen": _ratio(changed_ns, seen_ns),
        "rows": probed["rows"],
        "by_index": probed["by_index"],
        "raised": probed["raised"],
    }


def prompts(probed: Mapping[str, Any] | None) -> PromptProbe | NotProbed | None:
    """Summarises the prompt probe. probed: `prompts` from the last message of the measured process."""
    if probed is None or "reason" in probed:
        return cast("NotProbed | None", probed)
    changed_ns, seen_ns, again_ns = (
        np.asarray(probed[f"{name}_ns"], np.float64) for name in ("changed", "seen", "again")
    )
    return {
        "rounds": len(changed_ns),
        "changed_ns": float(np.median(changed_ns)) if len(changed_ns) else None,
        "over_seen": _ratio(changed_ns, seen_ns),
        "over_again": _ratio(changed_ns, again_ns),
        "refused": probed["refused"],
    }


def _ratio(changed_ns: Array, repeated_ns: Array) -> list[float] | None:
    """Returns [low, median, high] of the ratios per round, with the ends of the median's interval as low and high; None
    with too few rounds.
    """
    count = min(len(changed_ns), len(repeated_ns))  # an error may cut the last round short
    ratios = changed_ns[:count] / np.maximum(repeated_ns[:count], 1)
    low, high = median_interval(ratios, LEVEL)
    return None if low is None or high is None else [low, float(np.median(ratios)), high]
