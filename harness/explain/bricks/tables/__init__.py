"""Computes times from bricks, finds repeated layer sequences, and prints both."""
