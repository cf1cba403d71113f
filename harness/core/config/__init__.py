"""The options of a run: their schema, and how text becomes values."""
