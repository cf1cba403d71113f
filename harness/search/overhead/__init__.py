"""Implements `overhead`, which measures the cost of serving a model."""
