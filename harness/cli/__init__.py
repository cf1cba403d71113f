"""The command line: turns words into calls. It parses and never computes."""
