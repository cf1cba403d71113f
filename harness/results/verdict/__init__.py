"""The verdict of a run: reasons, doubts, score."""
