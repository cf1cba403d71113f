"""Compares a run's result with the client's other records: the seeds, the effective configuration and the last
snapshot.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from harness.core.files import read_json
from harness.errors import ConfigError
from harness.submit.endpoints.witness.doubts import Doubt

CONFIG, SNAPSHOT = "config.yaml", "metrics/final_snapshot.json"
_SEEDS = {
    ("settings", "runtime", "scheduler_random_seed"): "scheduler_rng_seed",
    ("settings", "runtime", "dataloader_random_seed"): "sample_index_rng_seed",
    ("model_params", "seed"): "model_seed",
}
"""Maps a seed's location in the configuration to the seed's name in the rules."""

_FIXED = (
    *(("settings", "runtime", key) for key in ("scheduler_random_seed", "dataloader_random_seed")),
    *(("settings", "runtime", "n_samples_to_issue"), ("settings", "load_pattern", "type")),
    *(("settings", "load_pattern", "target_concurrency"), ("endpoint_config", "endpoints")),
    *(
        ("model_params", key)
        for key in ("name", "seed", "temperature", "top_p", "top_k", "max_new_tokens", "streaming")
    ),
)
"""Locations at which the effective and the requested configuration must be equal."""

_COUNTERS = {
    "tracked_samples_issued": "n_samples_issued",
    "tracked_samples_completed": "n_samples_completed",
    "tracked_samples_failed": "n_samples_failed",
    "tracked_duration_ns": "duration_ns",
}
_SERIES = {
    "ttft_ns": "ttft",
    "tpot_ns": "tpot",
    "sample_latency_ns": "latency",
    "osl": "output_sequence_lengths",
}
_TOLERANCE = 1e-9


def seeds(asked: Mapping[str, Any], expected: Mapping[str, int]) -> Iterator[Doubt]:
    """Checks that the run used the cohort's seeds. expected: {} if the seeds are unknown."""
    for place, name in _SEEDS.items():
        value = at(asked, place)
        if name in expected and value != expected[name]:
            text = f"{place[-1]} of the run is {value}, but the seed set has {expected[name]}"
            yield Doubt("seeds-differ", text)


def effective(asked: Mapping[str, Any], report: Path) -> Iterator[Doubt]:
    """Checks that the client ran with the configuration that it received."""
    try:
        content = yaml.safe_load((report / CONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeError, yaml.YAMLError, ValueError, RecursionError):
        yield Doubt("config-differs", f"{CONFIG} of the client's report cannot be read")
        return
    for place in _FIXED:
        wanted, used = at(asked, place), at(content, place)
        if wanted is not None and wanted != used:
            text = f"{'.'.join(place)} was {used} in the run, but {wanted} was requested"
            yield Doubt("config-differs", text)


def at(content: object, place: tuple[str, ...]) -> Any:
    """Returns the value at a location in nested mappings; None if the location does not exist."""
    for key in place:
        content = content.get(key) if isinstance(content, Mapping) else None
    return content


def snapshot(report: Path, summary: Mapping[str, Any]) -> Iterator[Doubt]:
    """Compares the result with the last snapshot of the client's counters, because the client computed the result from
    this snapshot.
    """
    try:
        rows = read_json(report / SNAPSHOT).get("metrics")
        found = {row["name"]: row for row in rows or ()}
    except (ConfigError, KeyError, TypeError):
        yield Doubt("snapshot-differs", f"{SNAPSHOT} of the client's report cannot be read")
        return
    pairs = [
        (ours, at(found, (theirs, "value")), summary.get(ours))
        for theirs, ours in _COUNTERS.items()
    ]
    pairs += [
        (f"{ours}.{key}", at(found, (theirs, key)), at(summary, (ours, key)))
        for theirs, ours in _SERIES.items()
        for key in ("total", "min", "max")
    ]
    wrong = [pair for pair in pairs if not _is_equal(pair[1], pair[2])]
    if wrong:
        name, theirs, ours = wrong[0]
        text = (
            f"{len(wrong)} numbers differ from {SNAPSHOT}, e.g. {name}: {ours} instead of {theirs}"
        )
        yield Doubt("snapshot-differs", text)


def _is_equal(one: object, other: object) -> bool:
    numbers = [n for n in (one, other) if isinstance(n, int | float)]
    if len(numbers) < 2:
        return one in (None, 0) and other in (None, 0)
    return abs(numbers[0] - numbers[1]) <= _TOLERANCE * max(1.0, abs(numbers[0]))
