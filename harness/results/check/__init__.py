"""Compares the files of a finished run with each other."""
