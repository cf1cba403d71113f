"""Compares backends, precisions and thread counts in alternating runs, provided that their answers agree."""
