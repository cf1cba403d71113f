"""A node of --nodes: the model with its own data, which answers queries that name samples by their indices."""
