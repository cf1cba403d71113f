"""A node for --nodes. It has the model and the data, and answers queries that contain only sample indices."""
