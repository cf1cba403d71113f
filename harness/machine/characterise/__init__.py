"""Measures the machine's peaks of arithmetic, and the cost of moving data."""
