"""Reads a submission tree: rounds, systems, results."""
