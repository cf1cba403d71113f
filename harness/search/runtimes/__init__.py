"""Compares backends, precisions and numbers of threads in alternating runs, if their answers are equal."""
