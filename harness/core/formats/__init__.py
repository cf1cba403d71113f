"""Readers of file formats that need no library."""
