"""Reads a network's weights, strides and multiplications from the files of each framework."""
