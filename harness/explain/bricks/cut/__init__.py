"""Models cut into bricks."""
