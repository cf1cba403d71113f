"""Model files from the HuggingFace Hub: their names, the lists of repository files, and the hub's cache."""
