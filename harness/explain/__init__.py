"""Verbs that explain a result: profile, advise, bricks, pitfalls."""
