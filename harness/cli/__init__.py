"""The command line, which converts arguments to function calls. It only parses arguments and does not compute results."""
