"""Opens a model and its dataset on a backend, with its instances and threads."""
