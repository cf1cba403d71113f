"""Derives a run's verdict: reasons, doubts and score."""
