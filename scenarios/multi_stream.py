"""Multi-stream: eight samples a query, one query at a time; the metric is p99 latency."""

from harness.scenarios.parts.streams import Stream

MULTI_STREAM = Stream(
    name="multi-stream",
    loadgen_name="MultiStream",
    percentile=0.99,
    default_samples_per_query=8,
    early_stopping_key="early_stopping_latency_ms",
)
