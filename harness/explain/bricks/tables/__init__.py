"""Constructed times, repeated sequences, and their texts."""
