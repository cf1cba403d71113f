"""Null servers: they answer at once with the same bytes, so that what the client can do is measured."""
