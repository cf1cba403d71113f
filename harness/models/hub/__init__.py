"""Model files from the HuggingFace Hub: names, lists of repository files, the hub's cache."""
