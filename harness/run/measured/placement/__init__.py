"""Chooses the threads that answer: an instance on all cores for single queries, or fewer threads than cores."""
