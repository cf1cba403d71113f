"""Computes the length of an official run from LoadGen's built-in rules and a user.conf."""

from typing import NamedTuple

from harness.core.units import NS_PER_S
from harness.loadgen.binding import official_settings


class OfficialLoad(NamedTuple):
    """The load that LoadGen will generate under the official rules."""

    queries: int
    performance_count: int
    """Samples held in memory."""
    samples_per_query: int
    expected_s: float
    target_qps: float | None
    """Queries/s; Offline: samples/s; None for streams."""
    percentile: float
    """The percentile of the latency that is judged, in (0, 1)."""
    latency_bound_ns: int | None


def official_load(
    scenario: str, model_key: str, user_conf: str, total: int, held: int
) -> OfficialLoad:
    """total: samples in the dataset. held: samples in memory where the rules set no number."""
    s = official_settings(scenario, model_key, user_conf)
    seconds = s.min_duration_ms / 1e3
    rate, bound_ns, percentile, samples = None, None, 0.99, 1
    if scenario == "single-stream":
        queries = 2 * seconds * NS_PER_S / s.single_stream_expected_latency_ns
        percentile = s.single_stream_target_latency_percentile
    elif scenario == "multi-stream":
        queries = 2 * seconds * NS_PER_S / s.multi_stream_expected_latency_ns
        percentile = s.multi_stream_target_latency_percentile
        samples = s.multi_stream_samples_per_query
    elif scenario == "server":
        rate, bound_ns = s.server_target_qps, s.server_target_latency_ns
        percentile = s.server_target_latency_percentile
        queries = seconds * rate
    else:
        rate = s.offline_expected_qps
        queries = 1.1 * seconds * rate
    return OfficialLoad(
        queries=max(int(queries) + 1, s.min_query_count),
        performance_count=min(s.performance_sample_count_override or held, total),
        samples_per_query=samples,
        expected_s=seconds,
        target_qps=rate,
        percentile=percentile,
        latency_bound_ns=bound_ns,
    )
