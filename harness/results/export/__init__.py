"""Exports finished runs in the formats of other tools. Each format has its own module (docs/export.md)."""
