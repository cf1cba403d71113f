"""Generates answers with a language model on this machine, one token at a time."""
