"""Facts about a run: stages, percentiles, intervals, the reference."""
