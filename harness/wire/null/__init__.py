"""Null servers, which reply at once with the same bytes, to measure the client's limits."""
