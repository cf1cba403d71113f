"""Arithmetic benchmarks: matrix products, convolutions, sums."""
