"""Facts that a run leaves: stages, percentiles, intervals, the reference."""
