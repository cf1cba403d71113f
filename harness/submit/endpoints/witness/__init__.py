"""Witness: recomputes what the official client published from its events."""
