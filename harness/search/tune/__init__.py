"""Implements `tune`, which finds the fastest placement of a model on a machine."""
