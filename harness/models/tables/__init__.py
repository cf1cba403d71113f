"""Finds out from model files which inputs are indices into tables, and how many rows the tables have."""
