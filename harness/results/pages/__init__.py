"""Shows finished runs as HTML pages and text tables."""
