"""Reads the weights, strides and multiplications of a network from the files of each framework."""
