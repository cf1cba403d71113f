"""Storage formats of a model, each with a cold and a warm start."""
