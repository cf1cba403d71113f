"""Checks that the files of a finished run agree with each other."""
