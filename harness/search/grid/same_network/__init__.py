"""Whether the variants of a grid hold the same network."""
