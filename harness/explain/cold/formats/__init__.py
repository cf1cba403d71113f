"""Storage formats of a model, each with its cold and warm start."""
