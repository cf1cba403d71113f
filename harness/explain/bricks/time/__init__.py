"""Times of bricks, and the layout conversions at their ends."""
