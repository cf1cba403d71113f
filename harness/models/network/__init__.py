"""The weights, strides and multiplications of a network, read from the files of each framework."""
