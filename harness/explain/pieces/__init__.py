"""Pieces of a graph as models of their own, and the database of their times."""
