"""Describes a set of models and their cache, as a part of the result."""
