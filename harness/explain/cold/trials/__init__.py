"""Trials of a cold start, each in a fresh process."""
