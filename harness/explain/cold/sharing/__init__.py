"""Ways for two workers to share one copy of a model's weights."""
