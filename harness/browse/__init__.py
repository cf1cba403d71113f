"""Serves a results folder as local web pages. It only reads, and treats everything in the folder as foreign data."""
