"""Divides one schedule among several measured processes on this or other machines, and merges their measurements."""
