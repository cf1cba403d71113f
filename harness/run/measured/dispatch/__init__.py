"""Dispatchers, which pass queries to the instances: threads, shared lists, deadlines, lengths."""
