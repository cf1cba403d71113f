"""Explains a result: profile, advise, bricks, pitfalls."""
