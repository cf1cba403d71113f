"""Recomputes the numbers that the official client published from the client's events."""
