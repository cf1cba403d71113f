"""Opens a model and its dataset on a backend with instances and threads."""
