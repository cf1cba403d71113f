"""Checks power submissions."""
