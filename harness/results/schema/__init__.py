"""Defines the types of result.json, from which its JSON Schema and docs/result.md are generated."""
