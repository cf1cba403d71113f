"""Derives the verdict of a run: reasons, doubts and score."""
