"""Times computed from bricks, repeated sequences, and their texts."""
