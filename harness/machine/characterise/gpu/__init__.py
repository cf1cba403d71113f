"""Benchmarks of an NVIDIA GPU: matrix products and copies, through PyTorch."""
