"""Exports of finished runs in the formats of other tools, one module per format (docs/export.md)."""
