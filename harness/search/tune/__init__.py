"""The verb `tune`: finds the fastest placement of a model on a machine."""
