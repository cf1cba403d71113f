"""Reads from model files which inputs are indices into tables, and the tables' rows."""
