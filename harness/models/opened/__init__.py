"""A model and its dataset, opened on a backend with its instances and threads."""
