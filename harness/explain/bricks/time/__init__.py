"""Bricks measured, and the database of their times."""
