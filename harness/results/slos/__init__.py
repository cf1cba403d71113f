"""The SLOs of a run: how many answers met each, and how many met all."""
