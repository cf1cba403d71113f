"""Model files from the HuggingFace Hub. Handles names, lists of repository files, and the hub's cache."""
