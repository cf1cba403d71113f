"""Copies result folders without private names."""
