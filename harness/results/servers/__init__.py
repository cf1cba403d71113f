"""Metrics that servers reported during a run: `servers` of result.json."""
