"""Model files from the HuggingFace Hub: their names, the lists of their repositories, its cache."""
