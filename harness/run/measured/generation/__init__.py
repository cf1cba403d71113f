"""Answers with a language model of this machine, a token at a time."""
