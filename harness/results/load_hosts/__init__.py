"""Describes the hosts that shared a run's load, as a part of the result."""
