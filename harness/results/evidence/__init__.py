"""Computes facts about a run: stages, percentiles, intervals, and the comparison with the reference."""
