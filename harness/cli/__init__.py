"""The command line: turns arguments into calls. It parses, and never computes."""
