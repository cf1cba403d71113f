"""Times computed from bricks, repeated sequences, and their printed forms."""
