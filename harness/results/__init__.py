"""Reads and writes result folders: their files, result.json, and everything derived from them."""
