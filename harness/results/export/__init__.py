"""Exports finished runs in the formats of other tools. Each format has a separate module (docs/export.md)."""
