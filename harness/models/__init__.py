"""The model under test: manifest, files, steps, graph, precision, and how it is opened."""
