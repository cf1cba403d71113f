"""Reads a submission tree with its rounds, systems and results."""
