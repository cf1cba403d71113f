"""Copies of result folders without private names."""
