"""Trials of a cold start, each in a new process."""
