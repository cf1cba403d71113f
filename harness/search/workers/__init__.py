"""Implements `sweep` over the number of workers for a set of models."""
