"""Finished runs in the formats of other tools, one module a format (docs/export.md)."""
