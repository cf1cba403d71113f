"""Evaluates a run's SLOs: how many answers met each SLO, and how many met all of them."""
