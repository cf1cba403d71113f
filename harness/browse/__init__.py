"""Serves a results folder as local web pages. It only reads the folder, and trusts none of its content."""
