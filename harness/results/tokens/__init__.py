"""Summarises the tokens that a language model generated, and their times."""
