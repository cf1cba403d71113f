"""A cache of models: it decides which models stay in memory or in local files if not all of them fit."""
