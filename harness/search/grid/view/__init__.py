"""Shows a grid as tables, text and a page."""
