"""Exports finished runs to formats of other tools. Each format has a module (docs/export.md)."""
