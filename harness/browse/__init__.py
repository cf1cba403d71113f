"""A local web page over a results folder: read-only, and everything in the folder is foreign data."""
