"""Verbs that explain a result: profile, advise, bricks, cold, machine, pitfalls."""
