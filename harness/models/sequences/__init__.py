"""Models with states, constants and other batch axes. Handles their samples and frames, and the proposals of `init`."""
