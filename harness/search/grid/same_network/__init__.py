"""Checks whether a grid's variants contain the same network."""
