"""The command line, which converts arguments to calls. It only parses and never computes."""
