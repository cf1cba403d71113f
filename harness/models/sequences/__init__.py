"""Models with states, constants and other batch axes: their samples, their frames, and what `init` finds."""
