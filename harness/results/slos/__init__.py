"""The SLOs of a run: how many answers met each of them, and how many met all."""
