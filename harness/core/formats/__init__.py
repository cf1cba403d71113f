"""Readers for file formats that do not require an additional library."""
