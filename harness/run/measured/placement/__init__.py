"""Chooses which threads compute: an instance on all cores for single queries, or fewer threads than cores."""
