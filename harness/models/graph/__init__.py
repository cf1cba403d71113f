"""Reads the graph of a model and counts its work: nodes, shapes, wiring, multiplications and bytes."""
