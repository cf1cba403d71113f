"""Implements `sweep` over rates, which measures latency against load."""
