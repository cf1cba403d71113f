"""Compares backends, precisions and numbers of threads whose answers are equal, with runs in turns."""
