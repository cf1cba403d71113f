"""Measures what this machine can do: peaks of arithmetic, and what moving data costs."""
