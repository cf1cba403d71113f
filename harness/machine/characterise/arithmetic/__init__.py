"""Benchmarks of arithmetic: matrix products, convolutions, sums."""
