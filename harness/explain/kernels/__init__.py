"""Finds and analyses the kernels that a framework executed."""
