"""Describes the hosts that generated a run's load, as a part of the result."""
