"""The command line: words to calls; it parses and never computes."""
