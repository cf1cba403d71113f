"""Holds the files of a finished run against each other."""
