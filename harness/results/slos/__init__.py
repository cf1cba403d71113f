"""Evaluates the SLOs of a run, i.e. how many answers met each SLO and how many met all."""
