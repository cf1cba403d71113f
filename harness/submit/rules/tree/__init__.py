"""Reads a submission tree: its rounds, systems and results."""
