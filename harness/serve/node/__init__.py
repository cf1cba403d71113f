"""A node for --nodes, which holds the model and the data, and processes queries that contain only sample indices."""
