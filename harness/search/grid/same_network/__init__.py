"""Checks whether the variants of a grid hold the same network."""
