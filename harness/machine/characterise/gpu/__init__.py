"""Benchmarks of an NVIDIA GPU through PyTorch: matrix products and copies."""
