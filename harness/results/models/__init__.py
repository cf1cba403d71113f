"""Describes several models and their cache, as a part of the result."""
