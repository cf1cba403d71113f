"""HTML pages and text tables of finished runs."""
