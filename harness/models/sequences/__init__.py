"""Models with states, constants and unusual batch axes: their samples and frames, and what `init` proposes for them."""
