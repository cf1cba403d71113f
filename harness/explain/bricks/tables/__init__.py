"""Times that are computed from bricks, repeated layer sequences, and the output of both."""
