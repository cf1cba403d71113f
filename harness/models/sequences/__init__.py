"""Models with states, constants and unusual batch axes: their samples, their frames, and the proposals of `init`."""
