"""The part of a result about the hosts that shared a run's load."""
