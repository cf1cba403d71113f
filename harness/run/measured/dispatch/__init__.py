"""Dispatchers, which pass queries to the instances."""
