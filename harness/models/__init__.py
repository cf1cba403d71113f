"""The model under test: its manifest, files, processing steps, graph and precision, and the code that opens it."""
