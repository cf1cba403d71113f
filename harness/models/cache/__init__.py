"""A model cache, which decides which models stay in memory or in local files when not all models fit."""
