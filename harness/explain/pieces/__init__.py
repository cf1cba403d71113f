"""Pieces of a graph as separate models, and the database of their times."""
