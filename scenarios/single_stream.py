"""Single-stream sends one query of one sample at a time; the metric is p90 latency."""

from harness.scenarios.parts.streams import Stream

SINGLE_STREAM = Stream(
    name="single-stream",
    loadgen_name="SingleStream",
    percentile=0.90,
    default_samples_per_query=1,
    early_stopping_key="early_stopping_latency_ss",
    settings_prefix="single_stream",
)
