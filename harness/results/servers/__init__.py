"""Describes metrics that servers reported during a run, as `servers` of result.json."""
