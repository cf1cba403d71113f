"""Computes the length of an official run from LoadGen's built-in rules and a user.conf."""

from math import ceil
from typing import NamedTuple

from harness.loadgen.binding import official_settings
from harness.loadgen.scenario import scenario_named


class OfficialLoad(NamedTuple):
    """The load that LoadGen generates under the official rules."""

    queries: int
    performance_count: int
    """Number of samples held in memory."""
    samples_per_query: int
    expected_s: float
    target_qps: float | None
    """Rate in queries/s (Offline: samples/s); None for streams."""
    percentile: float
    """The latency percentile that is judged, in (0, 1)."""
    latency_bound_ns: int | None
    """Bound of the latency; None if LoadGen judges token times instead of the latency."""
    equal_issue: bool
    """Value for LoadPlan.equal_issue."""
    token_latencies: bool
    """Value for LoadPlan.token_latencies."""


def whole_sets(queries: int, samples: int) -> int:
    """Returns the number of queries that LoadGen issues with sample_concatenate_permutation. With this setting, LoadGen
    rounds up to a multiple of the samples in memory.
    """
    return ceil(queries / samples) * samples


def official_load(
    scenario: str, model_key: str, user_conf: str, total: int, held: int
) -> OfficialLoad:
    """Returns the load. total: number of samples in the dataset. held: number of samples in memory, unless the rules
    set this number.
    """
    settings = official_settings(scenario, model_key, user_conf)
    seconds = settings.min_duration_ms / 1e3
    load = scenario_named(scenario).expected_load(settings, seconds)
    queries = max(int(load.queries) + 1, settings.min_query_count)
    held = min(settings.performance_sample_count_override or held, total)
    if settings.sample_concatenate_permutation and scenario_named(scenario).scheduled:
        seconds *= whole_sets(queries, held) / queries
    return OfficialLoad(
        queries=queries,
        performance_count=held,
        samples_per_query=load.samples_per_query,
        expected_s=seconds,
        target_qps=load.target_qps,
        percentile=load.percentile,
        latency_bound_ns=None if settings.use_token_latencies else load.latency_bound_ns,
        equal_issue=settings.sample_concatenate_permutation,
        token_latencies=settings.use_token_latencies,
    )
