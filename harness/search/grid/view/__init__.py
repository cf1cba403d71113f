"""A grid as tables, text and a page."""
