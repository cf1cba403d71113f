"""`sweep` over the workers of a set of models."""
