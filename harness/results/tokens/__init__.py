"""Tokens that a language model on a server generated, and how fast."""
