"""Performs one run in two processes that share only the journal."""
