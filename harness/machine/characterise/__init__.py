"""Measures the machine's peak arithmetic rates and the cost of moving data."""
