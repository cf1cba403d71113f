"""Checks power submissions by the rules for them."""
