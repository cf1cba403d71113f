"""Reads a model's graph and counts its work: nodes, shapes, connections, multiplications and bytes."""
