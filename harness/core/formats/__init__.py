"""Readers for file formats that do not require a library."""
