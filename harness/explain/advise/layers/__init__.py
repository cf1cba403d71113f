"""Layers measured alone, and the lower bound they give."""
