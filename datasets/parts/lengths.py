"""Draws sequence lengths from a distribution, or from a file of lengths measured on real data."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from harness.core.config.parse import LONGEST_SEQUENCE
from harness.datasets.parts.sources import refuse, unreadable
from harness.types import Array, Lognormal


def draw(source: Lognormal | Path, count: int, seed: int, dimension: str) -> Array:
    """Returns (count,) int64 lengths, at least 1. The lengths depend only on the seed and the dimension's name.

    source: a distribution, or a file with lengths that are drawn with replacement.
    """
    random = np.random.default_rng([seed, *dimension.encode()])
    if isinstance(source, Path):
        return random.choice(read_lengths(source), count)
    drawn = source.median * np.exp(source.sigma * random.standard_normal(count))
    return np.clip(np.rint(drawn), 1, source.most).astype(np.int64)


def read_lengths(path: Path) -> Array:
    """Reads one whole number per line; skips empty lines. Raises a ConfigError that lists all lines with other content."""
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeError) as e:
        raise unreadable(path, e) from e
    problems = []
    lengths = []
    for number, line in enumerate(lines, 1):
        text = line.strip()
        length = int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 0
        if text and not 1 <= length <= LONGEST_SEQUENCE:
            problems.append(
                f"{path}:{number}: {text[:40]!r} is not a length from 1 to {LONGEST_SEQUENCE:,}"
            )
        elif text:
            lengths.append(length)
    if not lengths and not problems:
        problems.append(f"{path} is empty: it must contain one length per line")
    refuse(problems)
    return np.asarray(lengths)


def summary(source: Lognormal | Path, drawn: Array) -> Mapping[str, object]:
    """Summarises the lengths for describe()."""
    return {
        "from": str(source),
        "min": int(drawn.min()),
        "mean": round(float(drawn.mean()), 1),
        "max": int(drawn.max()),
    }
