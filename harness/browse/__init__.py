"""Serves a results folder as local web pages. Only reads the folder, and trusts none of its content."""
