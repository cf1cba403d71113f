"""Tokens that a language model generated, and their times."""
