"""Checks weights, storage formats, operators and reruns independently of the advice."""
