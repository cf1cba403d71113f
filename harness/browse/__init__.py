"""Serves a results folder as local web pages. Only reads the folder, and does not trust its content."""
