"""Chooses the threads that answer: an instance on all cores for a single query, or fewer threads than cores."""
