"""Benchmarks of data movement: copies, pages, transports, inputs."""
