"""A node of --nodes: the model with its own data, which answers queries with sample indices."""
