"""Multi-stream sends one query with eight samples at a time; the metric is p99 latency."""

from harness.loadgen.scenario import Axis
from harness.scenarios.parts.streams import Stream

MULTI_STREAM = Stream(
    name="multi-stream",
    loadgen_name="MultiStream",
    percentile=0.99,
    default_samples_per_query=8,
    early_stopping_key="early_stopping_latency_ms",
    settings_prefix="multi_stream",
    by_query=True,
    options=frozenset({"samples_per_query"}),
    search_axis=Axis("samples_per_query", "samples/query", 1, 4096, whole=True),
)
