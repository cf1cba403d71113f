"""Checks whether the variants of a grid contain the same network."""
