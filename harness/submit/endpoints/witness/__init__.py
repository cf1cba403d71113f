"""Recomputes the official client's published numbers from the client's event log."""
