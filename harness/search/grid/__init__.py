"""Implements `sweep` over settings: batch size, precision, threads, frameworks."""
