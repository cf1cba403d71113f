"""Reads from model files which inputs are indices into tables, and how many rows these tables contain."""
