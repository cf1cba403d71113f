"""Shows runs and searches in progress."""
