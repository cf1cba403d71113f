"""Benchmarks of data movement: copies, pages, transports and model inputs."""
