"""Dispatchers, which hand queries to the instances: threads, shared lists, deadlines, lengths."""
