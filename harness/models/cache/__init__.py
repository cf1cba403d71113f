"""A cache of models. It decides which models stay in memory or in local files if they do not all fit."""
