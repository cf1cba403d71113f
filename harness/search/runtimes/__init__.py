"""Compares backends, precisions and numbers of threads by runs in turns, if their answers are equal."""
