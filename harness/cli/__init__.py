"""The command line, which converts arguments to function calls. This package only parses arguments and does not compute
results.
"""
