"""Null servers, which answer at once with the same bytes, to measure the limits of the client."""
