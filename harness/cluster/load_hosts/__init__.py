"""Shares one schedule among several measured processes, here or on other machines, and merges their measurements."""
