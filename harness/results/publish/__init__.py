"""Copies of result folders that may be shown."""
